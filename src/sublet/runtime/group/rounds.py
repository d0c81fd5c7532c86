"""One agreement on who belongs to a group, told from all others: those of earlier orders and earlier controllers.

>>> Round(generation=2, life=1).number
2000001000
>>> Round.from_number(2000001000).after()
Round(generation=2, life=1, round=1)
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Round"]

ROUNDS = 1_000  # of one controller within one generation of the kernel; more count as those of a further controller
LIVES = 1_000_000  # controllers one after the other, at most: each counts its rounds above those of all before it


class Round(NamedTuple):
    """A restart of workers under one order of the kernel is a new round; later ones are greater."""

    generation: int = 0  # of the kernel's order
    life: int = 0  # controllers before this one
    round: int = 0  # agreements before this one, under this order and this controller

    @property
    def number(self) -> int:
        """As it goes over the wire (there it is called `generation`) and into the store."""
        return (self.generation * LIVES + self.life) * ROUNDS + self.round

    @classmethod
    def from_number(cls, number: int) -> Round:
        """What `number` gave."""
        rest, round_ = divmod(number, ROUNDS)
        return cls(*divmod(rest, LIVES), round_)

    def after(self) -> Round:
        """The next agreement under the same order."""
        return Round.from_number(self.number + 1)
