"""The agenda of a run, in order of time; ties break by kind, then by order of entry, so a run repeats exactly."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Tie(IntEnum):
    """The order of things of one instant: the market, then endings, then arrivals, the planner last."""

    MARKET = 0
    NODE = 1
    JOB = 2
    ARRIVAL = 3
    TIMER = 4
    PLANNER = 5


class Agenda(Generic[T]):
    """A priority queue of future happenings."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        self._count = 0
        self.timers = 0  # how many of the entries are timers: alone, they cannot bring anything new
        self.plans = 0  # and how many are plans to be made, or under way

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """When the next thing happens; of an agenda that is not empty."""
        return self._heap[0][0]

    def put(self, at_s: float, tie: Tie, what: T) -> None:
        """`what` happens at `at_s`."""
        self._count += 1
        self.timers += tie is Tie.TIMER
        self.plans += tie is Tie.PLANNER
        heapq.heappush(self._heap, (at_s, tie, self._count, what))

    def pop(self) -> tuple[float, T]:
        """The next thing and its time."""
        at_s, tie, _, what = heapq.heappop(self._heap)
        self.timers -= tie is Tie.TIMER
        self.plans -= tie is Tie.PLANNER
        return at_s, what
