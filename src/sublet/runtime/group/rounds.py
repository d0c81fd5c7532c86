"""One agreement on the members of a group, told from all others: those of earlier orders and earlier controllers.

The era of a controller is the time at which it began, and is above that of every controller that its store knows. So
the rounds of a store that is older than its use, a backup that was put back, are above all of those that it has
forgotten. Neither workers that still run nor the fence of a checkpoint meet a number again.

>>> Round(era=3, generation=2).number
1000030000020000
>>> Round.from_number(1000030000020000).after()
Round(era=3, generation=2, round=1)
>>> Round.from_number(2000001000)
Round(era=0, generation=2, round=1000)
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Round", "era_after"]

ROUNDS = 10_000  # under one order, of one controller; more count as those of a further order
GENERATIONS = 1_000_000  # orders to one job
OLD_ROUNDS = 1_000_000_000  # under one order, before there were eras: controllers counted by thousands in them
FIRST = OLD_ROUNDS * GENERATIONS  # number of the first round of an era; below it are those of before
BEGIN_S = 1_735_689_600  # of eras: 2025-01-01; from then on, 64 bits hold the numbers of 29 years


class Round(NamedTuple):
    """A restart of workers under one order of the kernel is a new round; later ones are greater."""

    era: int = 0  # of the controller; 0 = before there were any
    generation: int = 0  # of the kernel's order
    round: int = 0  # agreements before this one, under this order and this controller

    @property
    def number(self) -> int:
        """As it goes over the wire (there it is called `generation`) and into the store."""
        if not self.era:
            return self.generation * OLD_ROUNDS + self.round
        return FIRST + (self.era * GENERATIONS + self.generation) * ROUNDS + self.round

    @classmethod
    def from_number(cls, number: int) -> Round:
        """The inverse of `number`."""
        if number < FIRST:
            return cls(0, *divmod(number, OLD_ROUNDS))
        rest, round_ = divmod(number - FIRST, ROUNDS)
        return cls(*divmod(rest, GENERATIONS), round_)

    def after(self) -> Round:
        """The next agreement under the same order."""
        return Round.from_number(self.number + 1)


def era_after(last: int, unix_s: float, passed_s: float = 0.0) -> int:
    """The era of a controller that begins now: above the last known one, also if the clock was set back.

    `passed_s` have passed since then at least, whatever the clock says: a later start on the same store, put back, is
    above any earlier one.
    """
    return max(last + 1 + int(passed_s), int(unix_s) - BEGIN_S)
