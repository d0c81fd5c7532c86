"""Greedy that never shrinks a job (G3 of the elastic allocator's comparison)."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.domain.quantity import positive
from sublet_lab.rivals.greedy.widths import greedy_plan, speed_gained, what_it_asked_for


@dataclass(frozen=True, slots=True)
class GreedyKeep:
    """Greedy without shrinking: newcomers get what they asked for or what is free, and only growth follows."""

    every_s: float = 600.0  # look again after this long even if nothing happens

    def __post_init__(self) -> None:
        positive("every_s", self.every_s)

    def decide(self, snapshot: Snapshot) -> Plan:
        """A running job keeps its shape; the first in line that does not fit ends the starting."""
        return greedy_plan(snapshot, what_it_asked_for, speed_gained, self.every_s, held_first=True)
