"""One job on the box from submission to its end, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sublet.errors import SubletError
from sublet.runtime.controller_api.views import ENDED
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.box.hypervisor import Box
from sublet_lab.hosts.controller_host import HostedServer
from sublet_lab.hosts.faults import LEASE_S, HostFault, Scene
from sublet_lab.hosts.server import Server
from sublet_lab.studies.study import Tell

LOOK_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`loss` is that over all data at the end; None where the job did not come to it."""

    phase: str
    struck: bool
    steps_lost: int
    seconds: float
    usd: float
    loss: float | None
    why: str = ""
    whole_again: bool = False  # it was narrower after the last blow, and then as wide as it may be
    left: int = 0  # hosts that were on, or instances that were rented, after the controller had given all back


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """`nodes` at most; given up after `patience_s`. `look` is called now and then, from submission to the end."""

    spec: JobSpec
    steps: int
    nodes: int
    patience_s: float
    look: Callable[[Server, str], None] = lambda *_: None

    def run(self, box: Box, folder: Path, blows: Sequence[HostFault], tell: Tell) -> Outcome:
        """Everything is over when it returns: the controller is down, and no host is on."""
        make = HostedServer if any(blow.on_host for blow in blows) else Server
        server = make(
            folder / "state", box, nodes=self.nodes, lease_s=max((blow.lease_s for blow in blows), default=LEASE_S)
        )
        try:
            server.start()
            outcome = self._live(box, server, blows, tell)
        except SubletError as error:  # that, too, is an answer
            outcome = Outcome(
                phase="given up", struck=True, steps_lost=0, seconds=0.0, usd=0.0, loss=None, why=str(error)
            )
        finally:
            server.down()
            left = box.left_on()
            for host in box.hosts():
                host.cut_off()
        return replace(outcome, left=left)

    def _live(self, box: Box, server: Server, blows: Sequence[HostFault], tell: Tell) -> Outcome:
        job_id, began_s = server.submit(self.spec), time.monotonic()
        to_come, view, told_s = [blow for blow in blows if blow.strike], dict[str, Any](), began_s
        struck = narrower = whole_again = False
        name = f"{self.spec.name}, {blows[0].name}" if len(blows) == 1 else self.spec.name
        while time.monotonic() - began_s < self.patience_s:
            time.sleep(LOOK_S)
            view = server.job(job_id) or view
            if view.get("phase") in ENDED:
                break
            at = at_of(server.printed(job_id))
            nodes: list[str] = view.get("node_ids") or []
            whole = view.get("workers") == len(nodes) == self.nodes
            narrower |= struck and not to_come and not whole
            whole_again |= narrower and whole
            if to_come and whole and at >= to_come[0].at * self.steps:
                blow, struck = to_come.pop(0), True
                tell(f"{self.spec.name}: {blow.name}, at step {at}")
                if blow.strike is not None:
                    blow.strike(Scene(box, server, nodes))
            self.look(server, job_id)
            if time.monotonic() - told_s > 5.0:
                told_s = time.monotonic()
                tell(f"{name}: {view.get('phase')}, step {at}, {len(box.hosts())} hosts")
        self.look(server, job_id)
        seconds, printed = time.monotonic() - began_s, server.printed(job_id)
        lost = _number(view, "steps_lost") if self.spec.sdk else executed(printed) - self.steps
        ended = str(view.get("phase"))
        return Outcome(
            phase=ended if ended in ENDED else "given up",
            struck=not to_come and all(_number(view, blow.counted) > 0 for blow in blows if blow.counted),
            steps_lost=int(lost),
            seconds=seconds,
            usd=_number(view, "usd_total"),
            loss=result_of(printed),
            why=str(view.get("error") or view.get("reason") or ""),
            whole_again=whole_again,
        )


def at_of(printed: Mapping[str, Sequence[str]]) -> int:
    """The furthest step that any worker has told of."""
    return max(
        (int(line.split()[1]) for lines in printed.values() for line in lines if line.startswith("AT ")), default=0
    )


def executed(printed: Mapping[str, Sequence[str]]) -> int:
    """Steps that were made in all, those that were made twice counted twice: round by round, from where each began."""
    rounds: dict[str, list[str]] = {}
    for worker_id, lines in printed.items():
        rounds.setdefault(worker_id.rsplit(".", 1)[0], []).extend(lines)
    total = 0
    for lines in rounds.values():
        begins = [int(line.split()[1]) for line in lines if line.startswith("BEGIN ")]
        if begins:
            total += max(at_of({"": lines}) - begins[0], 0)
    return total


def result_of(printed: Mapping[str, Sequence[str]]) -> float | None:
    """The loss that the last worker told, if one did."""
    found = [line.partition(" ")[2] for lines in printed.values() for line in lines if line.startswith("RESULT ")]
    return float(json.loads(found[-1])["loss"]) if found else None


def _number(view: Mapping[str, object], name: str) -> float:
    value = view.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
