"""Cores on demand: which nodes to hold where a policy has given GPUs without a look at markets."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sublet.domain.offer import Market
from sublet.domain.plan import Pool, Snapshot
from sublet.planning.terms import Row, hold_rows

__all__ = ["hold_with_cores", "pools_short_of_cores"]

Counts = Mapping[str, int]  # nodes by offer, or GPUs by pool


def hold_with_cores(snapshot: Snapshot, plain: Counts, gpus: Counts, steady: Counts) -> dict[str, int]:
    """Nodes to hold instead of `plain`: as many GPUs in every pool, of them on demand those that are steady."""
    need: dict[Row, int] = {}
    for name, pool in snapshot.pools.items():
        size = pool.gpus_per_node
        if not pool.is_mixed or not steady.get(name, 0):
            need[Row(name, name, pool.offer_ids)] = gpus.get(name, 0)
            continue
        sure = max(_nodes(plain, pool, Market.ON_DEMAND), math.ceil(steady[name] / size))
        rest = max(0, math.ceil(gpus[name] / size) - sure)
        for market, nodes in ((Market.ON_DEMAND, sure), (Market.SPOT, rest)):
            need[Row(f"{name}:{market}", name, pool.markets[market])] = nodes * size
    return hold_rows(snapshot, need)


def pools_short_of_cores(
    snapshot: Snapshot, hold: Counts, plain: Counts, gpus: Counts, steady: Counts
) -> frozenset[str]:
    """Where fewer GPUs on demand are held than cores need; or, for the sake of cores, fewer in all than were given."""
    short = []
    for name, pool in snapshot.pools.items():
        size, core = pool.gpus_per_node, steady.get(name, 0)
        held, before = (sum(nodes[offer_id] for offer_id in pool.offer_ids) for nodes in (hold, plain))
        if core > _nodes(hold, pool, Market.ON_DEMAND) * size or (held < before and held * size < gpus.get(name, 0)):
            short.append(name)
    return frozenset(short)


def _nodes(hold: Counts, pool: Pool, market: Market) -> int:
    return sum(hold[offer_id] for offer_id in pool.markets.get(market, ()))
