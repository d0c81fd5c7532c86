"""The ends that the last controller knew of: an agent tells a new one of all ends that it remembers, old ones too.

>>> before = Census(first_after=(7, 3), staying=frozenset({"j-1.7.2"}))
>>> [before.has_counted(f"j-1.{worker}") for worker in ("6.0", "7.1", "7.2", "7.3", "8.4")]
[True, True, False, False, False]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sublet.domain.shape import Grid

__all__ = ["Census"]


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
