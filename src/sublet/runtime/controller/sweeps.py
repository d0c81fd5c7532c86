"""Offers of which the cloud takes everything at once, again and again: they rest before more is rented of them.

A sweep is when all nodes that are held of an offer are taken within seconds, and there were two of them at least. After
the first, more is asked for at once: a cloud that has none says so, and is left alone then (kernel/offering.py). This
is for one that gives and takes again: each further sweep within a quarter of an hour lets the offer rest, twice as long
each time. Until then whatever is asked of it is refused here, so that plans go elsewhere. All is cloud time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

__all__ = ["Sweeps"]

TOGETHER_S = 10.0  # within which nodes go in one sweep
FEWEST = 2  # nodes: one that is taken is a reclaim like any other
AGAIN_S = 900.0  # after a sweep, or after its rest: the next one is one more in a row
FIRST_REST_S = 60.0  # after the second, as after a refusal; doubled at each further one
LONGEST_REST_S = 960.0


@dataclass(slots=True)
class _Swept:
    """Of one offer."""

    taken: dict[str, float] = field(default_factory=dict)  # node -> when
    in_a_row: int = 0
    last_s: float = -math.inf
    rests_until_s: float = -math.inf


class Sweeps:
    """What one controller has seen of them; the next one begins with none."""

    def __init__(self) -> None:
        self._offers: defaultdict[str, _Swept] = defaultdict(_Swept)

    def take(self, offer_id: str, node_id: str, now_s: float, held: Collection[str]) -> tuple[int, float]:
        """The cloud took a node while these of its offer were held: (sweeps in a row, rest), if that is one more."""
        found = self._offers[offer_id]
        found.taken = {node: at_s for node, at_s in found.taken.items() if now_s - at_s <= TOGETHER_S}
        found.taken[node_id] = now_s
        if len(found.taken) < FEWEST or not found.taken.keys() >= set(held):
            return 0, 0.0
        found.taken.clear()
        is_next = now_s <= max(found.last_s, found.rests_until_s) + AGAIN_S
        found.in_a_row, found.last_s = found.in_a_row + 1 if is_next else 1, now_s
        rest_s = 0.0
        if found.in_a_row > 1:
            rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** min(found.in_a_row - 2, 30))
            found.rests_until_s = now_s + rest_s
        return found.in_a_row, rest_s

    def rest_s(self, offer_id: str, now_s: float) -> float:
        """For how long nothing more is rented of it; 0 = it does not rest."""
        return max(0.0, self._offers[offer_id].rests_until_s - now_s) if offer_id in self._offers else 0.0
