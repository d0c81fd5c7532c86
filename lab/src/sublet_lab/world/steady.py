"""The choice is steady: as long as nothing changes, few nodes are rented. Read from all that was written.

S     between two changes of jobs, prices, supply or measured speeds no more nodes are rented than three times the most
      that were held at once, and those that were lost

M     as long as nothing changes, no plan gives a job within an hour a shape back that an earlier one has taken away

A job that is moved between two markets at every plan rents without end, however calm all else is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sublet.domain.units import SECONDS_PER_H

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


Place = tuple[str, int, int, str]  # pool, GPUs, those of them that are steady, grid


class Moves:
    """Told of the same. What a plan gives counts, not how it is carried out: a loss may stand in between."""

    def __init__(self) -> None:
        self._place: dict[str, Place] = {}  # job -> what the last plan gave it
        self._left_s: dict[tuple[str, Place], float] = {}  # (job, place) -> when it left, since the last change
        self._change = 0  # number of the last event that changed anything
        self._answered = 0  # ... that a plan had seen

    def change(self, number: int) -> None:
        """The next plan that has seen this may be another choice."""
        self._change = number

    def hear(self, number: int, event: Mapping[str, Any], orders: Iterable[Mapping[str, Any]]) -> str:
        """The present fault; "" = none."""
        if event["type"] in CHANGES:
            self.change(number)
        if event["type"] != "PlanMade":
            for job_id in [order["job_id"] for order in orders if order["type"] == "StopJob"]:  # no plan's doing
                self._begins_anew(job_id)
            return ""
        if any(order["type"] == "RefusePlan" for order in orders):
            return ""
        if self._answered < self._change:
            self._answered = min(self._change, event["seen"])
            self._left_s.clear()
        told = (self._move(event["at_s"], job_id, shape) for job_id, shape in event["plan"]["shapes"].items())
        return next(filter(None, told), "")

    def _move(self, at_s: float, job_id: str, shape: Mapping[str, Any] | None) -> str:
        if shape is None:  # it waits
            self._begins_anew(job_id)
            return ""
        before = self._place.get(job_id)
        place = self._place[job_id] = (shape["pool"], shape["gpus"], shape["steady"], str(shape["grid"]))
        if before is None or before == place:
            return ""
        self._left_s[job_id, before] = at_s
        left_s = self._left_s.get((job_id, place))
        if left_s is None or at_s - left_s > SECONDS_PER_H:
            return ""
        return f"{job_id} left {place} at {left_s:.3f} s and is back at {at_s:.3f} s, and nothing had changed"

    def _begins_anew(self, job_id: str) -> None:
        self._place.pop(job_id, None)
        self._left_s = {left: at_s for left, at_s in self._left_s.items() if left[0] != job_id}


def moved_to_and_fro(events: Mapping[int, Mapping[str, Any]], starts: Collection[int]) -> str:
    """The first that is wrong in a log; a controller that starts after one of these events may choose anew."""
    moves = Moves()
    for number, facts in events.items():
        if wrong := moves.hear(number, facts["event"], facts.get("actions", ())):
            return wrong
        if number in starts:
            moves.change(number)
    return ""
