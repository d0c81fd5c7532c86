"""The log of a script: one run over all starts of a job, written by rank 0, each step once.

A step that is repeated after a loss is logged again by the script. The last step that a run has of each name is read
when the run is opened, and the first value of a step stays. If rank 0 is killed between a step and its log, the next
rank 0 has logged the same and writes it. Beside the script's numbers stand:

    sublet/workers        their number
    sublet/usd            cost so far; this and the next two are told by the controller
    sublet/resizes
    sublet/preemptions    nodes that the cloud took from it, with notice or without
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, Protocol

from sublet.errors import InvalidValue
from sublet.machine.wall import WALL
from sublet.train.link.agent_line import ControllerLink

HELD = 8  # words of a worker that is not rank 0: of the last step, which may have several


class Tracker(Protocol):
    """A destination of logs: `sublet.integrations` has some."""

    def begin(self, run: str) -> Mapping[str, int]:
        """Open the run, which others may have begun: the last step that it has of each name."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Durably: it survives the end of this process."""

    def end(self, *, finished: bool) -> None:
        """No more writes from this process; `finished`: nor from any other."""


class Log:
    """The trackers of one session, which are open where it is rank 0. One that fails stops no training."""

    def __init__(self, trackers: Sequence[Tracker], link: ControllerLink, run: str) -> None:
        self._trackers, self._link, self._run = trackers, link, run
        self._last: list[tuple[Tracker, dict[str, int]]] | None = None  # what each has; None = they are not open
        self._complained: set[int] = set()  # trackers
        self._held: deque[tuple[int, dict[str, float]]] = deque(maxlen=HELD)

    def write(self, values: Mapping[str, Any], *, rank: int, world: int, steps: int) -> None:
        """Numbers of the script after step `steps`; rank 0 of `world` workers writes."""
        if not isinstance(values, Mapping):
            raise InvalidValue("log", type(values).__name__, 'numbers by name: s.log({"loss": s.loss})')
        found = {str(name): _number(str(name), value) for name, value in values.items()}
        if not self._trackers:
            return
        found["sublet/workers"] = float(world)
        self._held.append((steps, found))
        if rank != 0:
            return
        if self._last is None:
            self._open(steps)
        told = None if self._link.line is None else self._link.line.spent
        if told is not None:
            found |= {"sublet/usd": told.usd, "sublet/resizes": told.resizes, "sublet/preemptions": told.preemptions}
        while self._held:
            step, said = self._held.popleft()
            if step <= steps:  # all may have gone back to a checkpoint
                self._write(step, said)

    def _write(self, step: int, found: Mapping[str, float]) -> None:
        for tracker, last in self._last or ():
            new = {name: value for name, value in found.items() if last.get(name, -1) < step}
            last.update(dict.fromkeys(new, step))
            if new:
                self._try(tracker, partial(tracker.write, step, new))

    def settle(self, rank: int) -> None:
        """In a new group: another worker may be rank 0 now."""
        if rank != 0:
            self.close(finished=False)

    def close(self, *, finished: bool) -> None:
        """Close the trackers that were opened here."""
        for tracker, _ in self._last or ():
            self._try(tracker, partial(tracker.end, finished=finished))
        self._last = None

    def _open(self, step: int) -> None:
        self._last = []
        for tracker in self._trackers:
            last = dict(tracker.begin(self._run))
            self._last.append((tracker, last))
            if max(last.values(), default=-1) > step:
                name, has = type(tracker).__name__, max(last.values())
                print(  # noqa: T201 - to the user, in the user's process
                    f"sublet: {name} has run {self._run} up to step {has}: steps that are made again, from {step} on, "
                    "are not logged twice",
                    file=sys.stderr,
                )

    def _try(self, tracker: Tracker, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - a server of figures that is away is no reason to stop training
            if id(tracker) not in self._complained:
                self._complained.add(id(tracker))
                print(f"sublet: {type(tracker).__name__} does not take what is logged: {error!r}", file=sys.stderr)  # noqa: T201 - as above


def check_trackers(given: Any) -> tuple[Tracker, ...]:
    """One, several or none, as a tuple."""
    several = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
    for each in several:
        if not all(callable(getattr(each, name, None)) for name in ("begin", "write", "end")):
            allowed = "a tracker: sublet.integrations.tensorboard.TensorBoard(directory), for one"
            raise InvalidValue("tracker", type(each).__name__, allowed)
    return several


def run_name(env: Mapping[str, str], checkpoints: object) -> str:
    """The same over all starts of a job; alone, over all that go on from the same checkpoints."""
    if told := env.get("SUBLET_RUN_ID"):
        return told
    if checkpoints is not None:
        return f"run-{hashlib.sha256(str(checkpoints).encode()).hexdigest()[:12]}"
    return f"run-{WALL.unix():.0f}-{os.getpid()}"  # nothing is kept: each start is another


def _number(name: str, value: Any) -> float:
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        return float(value.item())
    raise InvalidValue(f"log[{name!r}]", value, "a number, or a tensor of one")
