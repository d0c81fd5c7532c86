"""What speaks against a job whose nodes die; it outlives the controller, or a restart would clear the job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.runtime.group.rounds import Round

__all__ = ["Suspicion"]


@dataclass(slots=True)
class Suspicion:
    """What `blame` has seen of one job."""

    rounds: set[Round] = field(default_factory=set)  # starts in a row whose nodes died at once
    inside: set[Round] = field(default_factory=set)  # starts whose nodes the cloud did not take
    rests_until_s: float = 0.0  # wall: a new controller waits no longer
    counted_s: float = -math.inf  # wall, when the last of `rounds` lost its node: who was there then is of that start

    def facts(self) -> dict[str, list[int]]:
        """What a restart must find again."""
        return {
            "rounds": sorted(round_.number for round_ in self.rounds),
            "inside": sorted(round_.number for round_ in self.inside),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, list[int]]) -> Suspicion:
        """What `facts` gave."""
        rounds, inside = (map(Round.from_number, facts.get(name, [])) for name in ("rounds", "inside"))
        return cls(set(rounds), set(inside))
