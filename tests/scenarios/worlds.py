"""Lives of the shipped controller and agents in a simulated world (level S), with faults that a scenario chooses."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

from sublet_lab.world.life import Life, Outcome
from sublet_lab.world.story import Fault, JobPlan, Story

__all__ = ["Lived", "a_job", "a_story", "every", "fault", "lived"]


@dataclass
class Lived:
    """A life that is over."""

    life: Life
    outcome: Outcome


def a_job(name: str = "job0", **facts: object) -> JobPlan:
    """Two workers, some minutes."""
    given = {"at_s": 5.0, "max_workers": 2, "steps": 300, "step_s": 0.5, "boot_s": 1.0, "write_s": 0.5}
    return JobPlan(name=name, **{**given, **facts})  # type: ignore[arg-type]


def a_story(seed: int = 0, **facts: object) -> Story:
    """Of one such job; nothing goes wrong unless `faults` says so."""
    return Story(seed=seed, **{"jobs": (a_job(),), "faults": (), **facts})  # type: ignore[arg-type]


def fault(at_s: float, kind: str, rng: int = 0) -> Fault:
    """One that is to come."""
    return Fault(at_s=at_s, kind=kind, rng=rng)


def every(life: Life, seconds: float, look: Callable[[], None]) -> None:
    """Look on, as long as the life lasts."""

    def again() -> None:
        look()
        life.stage.world.after(seconds, again)

    life.stage.world.after(seconds, again)


def lived(
    story: Story, watch: Callable[[Life], None] = lambda _: None, *, sound: bool = True, keep_history: bool = False
) -> Lived:
    """Live it. Where a law breaks, `sound` says so with its seed."""
    life = Life(story, watch, keep_history=keep_history)
    was_on = gc.isenabled()
    gc.disable()
    try:
        outcome = life.live()
    finally:
        if was_on:
            gc.enable()
    if sound:
        assert outcome.broken is None, f"{outcome.broken} ({replace(story)})"
    return Lived(life, outcome)
