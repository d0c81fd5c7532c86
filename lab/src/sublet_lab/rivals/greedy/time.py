"""Greedy by time saved (G2 of the elastic allocator's comparison)."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.domain.quantity import positive
from sublet_lab.rivals.greedy.widths import greedy_plan, narrowest, time_saved_s


@dataclass(frozen=True, slots=True)
class GreedyTime:
    """Greedy by time: the fewest GPUs each in order of arrival, then one by one where they save most time."""

    every_s: float = 600.0  # look again after this long even if nothing happens

    def __post_init__(self) -> None:
        positive("every_s", self.every_s)

    def decide(self, snapshot: Snapshot) -> Plan:
        """No job overtakes: the first in line that does not fit ends the starting."""
        return greedy_plan(snapshot, narrowest, time_saved_s, self.every_s)
