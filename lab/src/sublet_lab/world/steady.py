"""The choice is steady: as long as nothing changes, few nodes are rented. Read from all that was written.

S     between two changes of jobs, prices, supply or measured speeds no more nodes are rented than three times the most
      that were held at once, and those that were lost

A job that is moved between two markets at every plan rents without end, however calm all else is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

__all__ = ["Steady", "unsteady"]

TIMES = 3
CHANGES = frozenset(
    {
        *("JobSubmitted", "JobCancelled", "JobChanged", "JobFinished", "JobFailed"),
        *("NodeNoticed", "NodeThreatened", "NodeSlow", "NodeSilent", "NodeLost", "NodesFound", "RentRefused"),
        *("PriceChanged", "PriceDoubted", "PriceHeardLate", "AvailabilityChanged", "OffersChanged"),
        *("BudgetChanged", "PurseSet"),
    }
)
ENDS = frozenset({"NodeLost", "NodeReleased", "RentRefused"})  # of nodes


class Steady:
    """Told of events and of what was ordered after them, one after another."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._since_s = 0.0
        self._most = self._rents = self._lost = 0

    def change(self, at_s: float, *, lost: int = 0) -> None:
        """From now on it may be another choice."""
        self._since_s, self._most, self._rents, self._lost = at_s, len(self._held), 0, lost

    def hear(self, event: Mapping[str, Any], orders: Iterable[Mapping[str, Any]]) -> str:
        """The present fault; "" = none. Both are as the log has them."""
        kind = event["type"]
        if kind in CHANGES:
            self.change(event["at_s"], lost=kind == "NodeLost")
        if kind in ENDS:
            self._held.discard(event["node_id"])
        for order in orders:
            if order["type"] == "RentNode":
                self._held.add(order["node_id"])
                self._rents += 1
        self._most = max(self._most, len(self._held))
        if self._rents <= TIMES * self._most + self._lost:
            return ""
        calm = f"from {self._since_s:.3f} to {event['at_s']:.3f} s of cloud time"
        return f"{self._rents} nodes were rented {calm}, never more than {self._most} at once, and nothing had changed"


def unsteady(events: Mapping[int, Mapping[str, Any]], starts: Collection[int]) -> str:
    """The first that is wrong in a log; a controller that starts after one of these events may choose anew."""
    steady = Steady()
    for number, facts in events.items():
        if wrong := steady.hear(facts["event"], facts.get("actions", ())):
            return wrong
        if number in starts:
            steady.change(facts["event"]["at_s"])
    return ""
