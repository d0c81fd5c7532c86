"""Learning rate schedulers that the session steps: after every step, or after every epoch.

They belong to the state, or a newcomer, or a run that resumes, would begin its schedule anew. One that the script steps
itself, after the batches of an epoch, belongs there too: `s.keep(scheduler=scheduler)`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sublet.errors import InvalidValue
from sublet.train.private import parts_of
from sublet.train.sessions.fitness import check_methods
from sublet.train.state.state import Progress
from sublet.wire.messages import is_profiled


class Schedules:
    """The schedulers of a session."""

    def __init__(self, given: Sequence[Any], *, every: str = "step") -> None:
        for scheduler in given:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise InvalidValue(
                    "scheduler",
                    "ReduceLROnPlateau",
                    "one that steps without a measurement; leave it out, s.keep(plateau=scheduler), and step it "
                    "yourself after the batches of each epoch of s.epochs(), with a number that is the same in all "
                    "ranks, such as that of s.evaluate()",
                )
            check_methods("scheduler", scheduler, "step", "state_dict", "load_state_dict")
        # In a profile none is stepped: it would be over long before the profile is.
        self.all, self._every = list(given), "" if is_profiled() else every
        self.note()

    def look_for_others(self, optimizers: Sequence[Optimizer], kept: Iterable[Any], *, strict: bool) -> None:
        """Say it of an optimizer that has a scheduler which is in no state; `kept`: what the script has registered."""
        known = {id(getattr(part, "optimizer", None)) for each in (*self.all, *kept) for part in _parts(each)}
        if all(id(each) in known or not any("initial_lr" in g for g in each.param_groups) for each in optimizers):
            return
        what, allowed = (
            "a scheduler of this optimizer",
            (
                "handed over: train.session(..., scheduler=scheduler) steps it after every step, with "
                "scheduler_every='epoch' after every epoch; s.keep(scheduler=scheduler) keeps one that you step. "
                "Otherwise a start that goes on from a checkpoint begins it anew"
            ),
        )
        if strict:
            raise InvalidValue("scheduler", what, allowed)
        print(f"sublet: {what} is not known to the session; it should be {allowed}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process

    def end_step(self, progress: Progress, due: int) -> None:
        """A step is made: those that go by the step are to have made as many as are due."""
        if self._every == "step":
            self._reach(due, progress)

    def end_epochs(self, progress: Progress) -> None:
        """These epochs are over, and the script's lines after their batches: step schedulers that go by epochs."""
        if self._every == "epoch":
            self._reach(progress.epoch, progress)

    def _reach(self, due: int, progress: Progress) -> None:
        while progress.scheduled < due:
            for scheduler in self.all:
                scheduler.step()
            self.note()
            progress.scheduled += 1

    def note(self) -> None:
        """Remember how often each was stepped."""
        self._counts = _counts(self.all)

    def check(self) -> None:
        """Refuse a step that is not the script's to make."""
        if self.all and _counts(self.all) != self._counts:
            raise InvalidValue(
                "scheduler.step()",
                "a call",
                "left to the session, which steps what it was given as scheduler= after every step, or with "
                "scheduler_every='epoch' after every epoch; or leave scheduler= out, say s.keep(scheduler=scheduler), "
                "and call it after the batches of each epoch of s.epochs()",
            )


def _parts(scheduler: Any) -> Iterator[Any]:
    """Itself, and those that it is made of."""
    yield scheduler
    for part in parts_of(scheduler):
        yield from _parts(part)


def _counts(schedulers: Iterable[Any]) -> list[int]:
    return [getattr(part, "last_epoch", 0) for scheduler in schedulers for part in _parts(scheduler)]
