"""Members that have drifted apart are found when they agree on a step, and end as an error.

Each applies what all have summed by the numbers of its own optimizer: where a script changes these in one worker and
not in another, the parts are of different trainings from then on. So in every `EVERY`th step all who train say a digest
of their rates, with its square, and that they do: it is the same at all if the squares add up to what the sum says (as
in `sublet.train.numerics.drift`, for whole models).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sublet.errors import RanksDiffer
from sublet.train.numerics.drift import EVERY, NEXT, RATES, digest, numbers_of

__all__ = ["WORDS", "Alike"]

WORDS = 3  # who says it, the sum, and that of squares
BITS = 20  # the square of a sum over a thousand members is a whole number that a float64 has


class Alike:
    """Watches one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def check_step(self, counted: int, applied: int) -> None:
        """By the counter that says which samples come next, as many are made as were applied here: or RanksDiffer."""
        if counted != applied:
            hint = "report this: it is a fault in sublet; 'sublet resume' goes on from the checkpoint before it"
            what = f"the number of steps ({counted} in place of {applied})"
            raise RanksDiffer(what, ranks=[], step=applied, hint=hint)

    def say(self, step: int, *, trains: bool) -> tuple[float, ...]:
        """Before the sum; nothing in most steps, nor of a worker that is spare."""
        if step % EVERY or not trains:
            return (0.0, 0.0, 0.0)
        own = float(digest(numbers_of(self._optimizer)) & ((1 << BITS) - 1))
        return (1.0, own, own * own)

    def hear(self, summed: Sequence[float], step: int) -> None:
        """After it, at all alike: RanksDiffer if theirs are not the same."""
        count, total, squares = summed
        if count * squares != total * total:
            raise RanksDiffer("learning rate", ranks=[], step=step, hint=NEXT[RATES])
