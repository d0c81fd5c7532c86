"""Nodes of a job that were replaced because they were slow, and whether that helped; it outlives the controller.

A script that does more on one rank than on the others makes a straggler of whatever node that rank is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Replacements"]

AS_SLOW = 0.8  # of what it was before: a replacement that brought no more than that brought nothing


@dataclass(slots=True)
class Replacements:
    """Of one job."""

    times: dict[int, float] = field(default_factory=dict)  # rank -> the least, against its peers, it was replaced for
    nodes: set[str] = field(default_factory=set)  # that were replaced
    beside: set[str] = field(default_factory=set)  # all that the job was on at the last one; others came later
    last: float = 0.0  # times as long as its peers, of the last one
    in_vain: bool = False  # it is the script's own work: no node is replaced for it any more

    def brought_nothing(self, rank: int, node_id: str, times: float) -> bool:
        """Whether this straggler is what a replacement was to end: its rank again, or a node that came since."""
        if node_id in self.nodes:  # it is still there: the other one has not come yet
            return False
        again = rank in self.times and times >= AS_SLOW * self.times[rank]
        return again or (bool(self.beside) and node_id not in self.beside and times >= AS_SLOW * self.last)

    def add(self, rank: int, node_id: str, times: float, group: Iterable[str]) -> None:
        """This one is replaced; `group`: the nodes that the job is on."""
        self.times[rank] = min(times, self.times.get(rank, times))  # the least: so there is an end, whatever it says
        self.nodes.add(node_id)
        self.beside, self.last = set(group), times

    def facts(self) -> dict[str, Any]:
        """What a restart must find again."""
        return {
            "times": sorted(self.times.items()),
            "nodes": sorted(self.nodes),
            "beside": sorted(self.beside),
            "last": self.last,
            "in_vain": self.in_vain,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Replacements:
        """What `facts` gave."""
        nodes, beside = set(facts.get("nodes", ())), set(facts.get("beside", ()))
        return cls(dict(facts.get("times", ())), nodes, beside, facts.get("last", 0.0), facts.get("in_vain", False))
