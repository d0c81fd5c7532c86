"""What a script may ask of its session where the model is cut: which seat this worker has, and how far training is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sublet.train.grid.course import Course
from sublet.train.grid.dice import next_of_each, throw_between
from sublet.train.grid.gloo import GlooMesh
from sublet.train.grid.losses import Losses
from sublet.train.grid.member import Member
from sublet.train.grid.seat import Seat
from sublet.train.options import Options
from sublet.train.standing import Counted
from sublet.train.state import Progress
from sublet.train.tracking import Log

__all__ = ["Seated"]


class Seated(Counted):
    """The part of a session that changes nothing."""

    _mesh: GlooMesh
    _seat: Seat
    _generation: int
    _member: Member | None
    _log: Log
    _course: Course
    options: Options
    _is_behind: bool  # the loop, which is left
    _next: tuple[float, float, float]  # of the dice, where the first batch began

    @property
    def _seen(self) -> Progress:
        return self._course.looked_at()

    @property
    def _alike(self) -> bool:
        """Whether all are in one pass of the loop: in that of a step, or in the first after a checkpoint.

        Where all have gone back to one, or somebody has joined while the others evaluate, each comes to that in its own
        time, and waits there for the others.
        """
        member, course = self._member, self._course
        if member is None or not member.closed:
            return member is not None
        return course.counts and (member.went_back or course.is_there)

    @property
    def _went_back(self) -> bool:
        return self._member is not None and self._member.went_back

    @contextmanager
    def _left(self) -> Iterator[None]:
        """Around a batch, which the script has: by a break it leaves the loop."""
        try:
            yield
        except GeneratorExit:
            self._is_behind = True
            self._leave_loop()
            raise

    def _leave_loop(self) -> None:
        self._course.leave(alike=self._alike, judged=0 if self._member is None else len(self._member.judged))

    def _throw(self, place: int) -> None:
        """All dice, for the lines of the script that come next."""
        throw_between(self.options.seed, self._course.seen.steps, place)
        if self._member is None:
            self._next = next_of_each()

    def _look_at_dice(self) -> None:
        """Who has drawn before the first call has looked: a start from a checkpoint draws other numbers there."""
        if self._member is None and next_of_each() != self._next:
            self._course.looked_at()

    @property
    def rank(self) -> int:
        """0 for the worker that prints: it has the first part of the first copy."""
        return self._mesh.rank

    @property
    def world(self) -> int:
        """Number of workers now."""
        return len(self._seat.everyone())

    def log(self, values: Mapping[str, Any]) -> None:
        """As `sublet.train.standing.Standing.log`."""
        self._log.write(values, self)

    @property
    def place(self) -> tuple[int, int]:
        """(copy, part) of this worker."""
        return self._seat.copy, self._seat.part

    @property
    def grid(self) -> tuple[int, int]:
        """Copies of the model, and parts of each."""
        return self._seat.copies, len(self._seat.parts)

    @property
    def generation(self) -> int:
        """Number of the decision that made the present grid; 0 without a controller."""
        return self._generation

    @property
    def loss(self) -> float:
        """Mean loss over the global batch of the last step."""
        self._course.looked_at()
        if self._member is None:
            return math.nan
        before = self._course.loss_before
        return self._member.loss if before is None else before

    @property
    def _losses(self) -> Losses:
        """Of that step; on a GPU, to look at them waits for it."""
        return Losses(math.nan) if self._member is None else self._member.losses
