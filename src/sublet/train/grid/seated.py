"""What a script may ask of its session where the model is cut: which seat this worker has, and how far training is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sublet.train.grid.gloo import GlooMesh
from sublet.train.grid.member import Member
from sublet.train.grid.seat import Seat
from sublet.train.options import Options
from sublet.train.standing import Counted
from sublet.train.tracking import Log

__all__ = ["Seated"]


class Seated(Counted):
    """The part of a session that changes nothing."""

    _mesh: GlooMesh
    _seat: Seat
    _generation: int
    _member: Member | None
    _log: Log
    options: Options

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
        return math.nan if self._member is None else self._member.loss
