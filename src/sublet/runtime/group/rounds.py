"""One agreement on the members of a group, told from all others, and the ends that the last controller knew of.

The era of a controller is the time at which it began, and is above that of every controller that its store knows. So
the rounds of a store that is older than its use, a backup that was put back, are above all of those that it has
forgotten. Neither workers that still run nor the fence of a checkpoint meet a number again.

>>> Round(era=3, generation=2).number
1000030000020000
>>> Round.from_number(1000030000020000).after()
Round(era=3, generation=2, round=1)
>>> Round.from_number(2000001000)
Round(era=0, generation=2, round=1000)

>>> before = Census(first_after=(7, 3), staying=frozenset({"j-1.7.2"}))
>>> [before.has_counted(f"j-1.{worker}") for worker in ("6.0", "7.1", "7.2", "7.3", "8.4")]
[True, True, False, False, False]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sublet.domain.shape import Grid

__all__ = ["Census", "Round", "era_after"]

ROUNDS = 10_000  # under one order, of one controller; more count as those of a further order
GENERATIONS = 1_000_000  # orders to one job
OLD_ROUNDS = 1_000_000_000  # under one order, before there were eras: controllers counted by thousands in them
FIRST = OLD_ROUNDS * GENERATIONS  # number of the first round of an era; below it are those of before
BEGIN_S = 1_735_689_600  # of eras: 2025-01-01; from then on, 64 bits hold the numbers of 29 years


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The workers of one job when it was last written down."""

    first_after: tuple[int, int] = (0, 0)  # round and number of the next to be started
    staying: frozenset[str] = frozenset()  # those that ran, and were not told to go
    ranges: bool = False  # the optimizer's state was in ranges
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # in a grid: copy, part, and what one kept
    formed: Grid | None = None  # the grid that places are of, which may not be the one that was ordered last

    def has_counted(self, worker_id: str) -> bool:
        """Its end was dealt with, or it was told to go: that it has ended is no news."""
        round_, number = worker_id.split(".")[-2:]
        return worker_id not in self.staying and (int(round_), int(number)) < self.first_after

    def facts(self) -> dict[str, Any]:
        """Facts that the next controller must find again."""
        facts: dict[str, Any] = {"first_after": list(self.first_after), "staying": sorted(self.staying)}
        facts |= {"ranges": True} if self.ranges else {}
        if self.places:
            facts["places"] = {name: list(place) for name, place in self.places.items()}
        return facts | ({"formed": [self.formed.copies, self.formed.parts]} if self.formed is not None else {})

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Census:
        """The inverse of `facts`; without any, every end is news."""
        round_, number = facts.get("first_after", (0, 0))
        places = {name: tuple(place) for name, place in facts.get("places", {}).items()}
        formed = Grid(*facts["formed"]) if "formed" in facts else None
        staying, ranges = frozenset(facts.get("staying", ())), bool(facts.get("ranges"))
        return cls(first_after=(round_, number), staying=staying, places=places, formed=formed, ranges=ranges)


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
