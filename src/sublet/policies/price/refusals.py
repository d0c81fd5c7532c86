"""What was refused may be refused again: nothing that is there, or on its way, is given up to ask for it once more.

A cloud that does not tell how many nodes it has is asked by renting one. A job that trains can let others ask: it
trains on until the node is there. It cannot if the node that boots for it would be given back meanwhile, or if there is
no money to hold both. Then it stays with what it has; who has nothing asks for anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sublet.domain.plan import JobState, OfferState, Pool, Snapshot
from sublet.planning.affordable import most_gpus_beside
from sublet.planning.menu import Sites
from sublet.planning.options import SETTLED, Options
from sublet.solve.arrays import Bools, Floats

__all__ = ["Doubts", "doubts_of", "without_gambles"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Doubts:
    """By pool."""

    place: dict[str, int]  # of each pool
    refused_P: Bools  # whatever more could be asked for was refused when it was asked for last
    coming_P: Bools  # nodes are on their way
    free_P: Floats  # GPUs on nodes that are there, promised to nobody
    beside_P: Floats  # GPUs promised to nobody that could be held beside all that is held now


def doubts_of(snapshot: Snapshot, sites: Sites) -> Doubts | None:
    """None where nothing was refused, or all has been heard of since. Cost: O(offers), and pools that refused."""
    if not any(state.refused for state in snapshot.offers.values()):
        return None
    pools = [snapshot.pools[site.pool] for site in sites]
    promised_P = np.array([snapshot.promised[pool.name] for pool in pools], dtype=np.float64)
    refused = [_refused(snapshot, pool) for pool in pools]
    beside = [most_gpus_beside(snapshot, p.name) if no else np.inf for p, no in zip(pools, refused, strict=True)]
    ready = [sum(s.held - s.coming for s in _offers(snapshot, pool)) * pool.gpus_per_node for pool in pools]
    return Doubts(
        place={pool.name: at for at, pool in enumerate(pools)},
        refused_P=np.array(refused, dtype=np.bool_),
        coming_P=np.array([any(s.coming for s in _offers(snapshot, pool)) for pool in pools], dtype=np.bool_),
        free_P=np.array(ready, dtype=np.float64) - promised_P,
        beside_P=np.array(beside, dtype=np.float64) - promised_P,
    )


def without_gambles(options: Options, state: JobState, doubts: Doubts | None) -> Options:
    """The options without those for which a job would have to give up what it has, if there are others. Cost: O(C)."""
    if doubts is None or state.shape is None or state.shape.pool not in doubts.place:
        return options
    own, menu = doubts.place[state.shape.pool], options.menu
    waits = bool(doubts.coming_P[own]) and not (state.phase in SETTLED and state.runs_in == state.shape)
    if not waits and not state.gpus:
        return options
    room_P = doubts.free_P if waits else np.maximum(doubts.free_P, doubts.beside_P)
    gamble_C = doubts.refused_P[menu.site_C] & (menu.site_C != own) & (menu.gpus_C > room_P[menu.site_C])
    cost_C = np.where(gamble_C, np.inf, options.cost_C)
    return replace(options, cost_C=cost_C) if np.isfinite(cost_C).any() else options


def _offers(snapshot: Snapshot, pool: Pool) -> list[OfferState]:
    return [snapshot.offers[offer_id] for offer_id in pool.offer_ids]


def _refused(snapshot: Snapshot, pool: Pool) -> bool:
    askable = [state for state in _offers(snapshot, pool) if state.most > state.held]
    return bool(askable) and all(state.refused for state in askable)
