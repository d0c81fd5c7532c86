"""Learning rate schedulers: those that the session steps, and those that the script steps itself, once per epoch.

Both belong to the state, or a newcomer, or a run that resumes, would begin its schedule anew. The script need not hand
over what it steps itself: the schedulers of an optimizer are found. It may step them only where all ranks are between
two epochs. Between two batches the step may be one that is dropped, and in which some ranks have no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sublet.errors import InvalidValue
from sublet.train.alive import alive
from sublet.train.fitness import check_methods
from sublet.train.profiling import is_profiled
from sublet.train.state import Progress

__all__ = ["Schedules", "asked_by"]


class Schedules:
    """All schedulers of a session's optimizers."""

    def __init__(self, given: Sequence[Any], *optimizers: Optimizer, every: str = "step") -> None:
        for scheduler in given:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise InvalidValue(
                    "scheduler",
                    "ReduceLROnPlateau",
                    "one that steps without a measurement; leave it out, and step it yourself after the batches of "
                    "each epoch of s.epochs(), with a number that is the same in all ranks",
                )
            check_methods("scheduler", scheduler, "step", "state_dict", "load_state_dict")
        self._given, self._optimizers, self._every = list(given), optimizers, every
        self._found: list[LRScheduler] = []
        self._counts: list[list[int]] = []

    @property
    def all(self) -> list[Any]:
        """In an order that is the same in every process."""
        return [*self._given, *self._found]

    @property
    def called(self) -> dict[str, Any]:
        """Functions of the script that they ask, by name."""
        return asked_by(self.all)

    def find(self) -> None:
        """Those that were not handed over."""
        known = {id(part) for scheduler in self._given for part in _parts(scheduler)}
        whose = {id(optimizer): number for number, optimizer in enumerate(self._optimizers)}
        live = [each for each in alive(LRScheduler) if id(getattr(each, "optimizer", None)) in whose]
        inner = {id(part) for scheduler in live for part in list(_parts(scheduler))[1:]}
        found = [each for each in live if id(each) not in known | inner]
        names = {id(each): (whose[id(each.optimizer)], type(each).__qualname__) for each in found}
        self._found = sorted(found, key=lambda each: names[id(each)])
        for (_, name), count in Counter(names.values()).items():
            if count > 1:
                allowed = "handed over in an order: session(..., scheduler=[...]), or one ChainedScheduler"
                raise InvalidValue("scheduler", f"{count} {name} of one optimizer", allowed)
        self.note()

    def find_late(self) -> None:
        """Those that were made since, if there is a trace of any."""
        if not self.all and any(
            "initial_lr" in group for optimizer in self._optimizers for group in optimizer.param_groups
        ):
            self.find()

    def step(self) -> None:
        """Those that are the session's to step."""
        if not self._given and not self._found:
            return
        for scheduler in self._given:
            scheduler.step()
        self.note()

    def end_step(self, progress: Progress, due: int) -> None:
        """A step is made: those that go by the step are to have made as many as are due."""
        if self._every == "step":
            self._reach(due, progress)

    def end_epochs(self, progress: Progress) -> None:
        """So many epochs are over, and so is what the script did after their batches: those that go by them follow."""
        if self._every == "epoch" and not is_profiled():
            self._reach(progress.epoch, progress)

    def _reach(self, due: int, progress: Progress) -> None:
        while progress.scheduled < due:
            self.step()
            progress.scheduled += 1

    def note(self) -> None:
        """Remember how often each was stepped."""
        self._counts = [_counts(self._given), _counts(self._found)]

    def check(self, *, between_epochs: bool = False) -> None:
        """Refuse a step that is not the script's to make; what it made between two epochs counts."""
        if not self._given and not self._found:
            return
        given, found = self._counts
        if _counts(self._given) != given:
            raise InvalidValue(
                "scheduler.step()",
                "a call",
                "left to the session, which steps what it was given as scheduler= after every step, or with "
                "scheduler_every='epoch' after every epoch; or leave scheduler= out and call it after the batches of "
                "each epoch of s.epochs()",
            )
        if not between_epochs and _counts(self._found) != found:
            raise InvalidValue(
                "scheduler.step()",
                "a call before or between the batches of an epoch",
                "after them, in `for epoch in s.epochs()`; for one step per step leave it to the session: "
                "session(..., scheduler=scheduler)",
            )
        if between_epochs:
            self.note()


def asked_by(schedulers: Iterable[Any]) -> dict[str, Any]:
    """The functions that schedulers among these ask, by name."""
    parts = [part for each in schedulers if isinstance(each, LRScheduler) for part in _parts(each)]
    asked = [each for part in parts for each in getattr(part, "lr_lambdas", ())]
    return {f"lr_lambda {number}": each for number, each in enumerate(asked)}


def _parts(scheduler: Any) -> Iterator[Any]:
    """Itself, and those that it is made of."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _parts(part)


def _counts(schedulers: Iterable[Any]) -> list[int]:
    return [getattr(part, "last_epoch", 0) for scheduler in schedulers for part in _parts(scheduler)]
