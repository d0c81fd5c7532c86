"""A life that a person can read: what the controllers told, what was said on the wire, and the faults, by time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sublet.wire import messages as wire
from sublet_lab.world.life import Life, Outcome
from sublet_lab.world.story import Fault, Story

LONGEST = 170  # characters of a message
EVERYDAY = (wire.RenewLease, wire.Ping, wire.Stepped, wire.Busy, wire.WorkerSeen, wire.GpuSeen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: when (of the world's age), from which to which, and the message."""

    at_s: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:9.3f}  {self.who:<14} {self.what}"


@dataclass
class _Listener:
    """Notes what passes through the real engine, both ways."""

    everyday: bool
    rows: list[Row] = field(default_factory=list)

    def attend(self, life: Life) -> None:
        world = life.stage.world
        life.site.log = lambda node_id, text: self.note(world.age_s, f"log of {node_id}", text)
        life.stage.controllers.heard = lambda life_no, way, node_id, message: self.hear(
            world.age_s, life_no, way, node_id, message
        )
        life.stage.controllers.started.append(
            lambda away_s: self.note(world.age_s, "controller", f"starts, after {away_s:.1f} s")
        )
        stage = life.stage
        stage.on_fault = lambda fault, worked: self.note(
            world.age_s, "FAULT", _told(fault, stage.victim, worked=worked)
        )
        stage.on_effect = lambda kind: self.note(world.age_s, "FAULT", f"{kind} has an effect")

    def note(self, at_s: float, who: str, what: str) -> None:
        self.rows.append(Row(at_s=at_s, who=who, what=what))

    def hear(self, at_s: float, life_no: int, way: str, node_id: str, message: Any) -> None:
        inner = message.message if isinstance(message, wire.FromWorker) else message
        if self.everyday or not isinstance(inner, EVERYDAY):
            text = f"StartWorker {inner.worker_id}" if isinstance(inner, wire.StartWorker) else str(inner)[:LONGEST]
            self.note(at_s, f"c{life_no} {way} {node_id}", text)


def _told(fault: Fault, victim: str, *, worked: bool | None) -> str:
    effect = {True: "", False: " (without effect)", None: " (is set up)"}[worked]
    return f"{fault.kind}{f': {victim}' if victim else ''}{effect}"


def look(story: Story, *, everyday: bool = False) -> tuple[Outcome, list[Row]]:
    """Live it once more, and write down what happens; `everyday`: pings, steps and renewals, too."""
    listener = _Listener(everyday)
    life = Life(story, watch=listener.attend, keep_history=True)
    outcome = life.live()
    rows = [*listener.rows, *(Row(at_s=at_s, who=f"[{who}]", what=what) for at_s, who, what in life.history)]
    return outcome, sorted(rows, key=lambda row: row.at_s)
