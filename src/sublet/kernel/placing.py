"""Which GPUs a job goes to: those that it has, as far as it can, on spot what need not be on demand, and back to spot.

A job that spot lacks room for trains on on-demand nodes meanwhile. Once there is room again nothing is missing, so that
nothing would move it, and nodes that are in use are not given back: they would be kept for ever. So a job on an
on-demand node that the plan does not hold on to leaves it, but for what it was promised there. The holdings of a plan
are its word: as long as it wants a node, no job leaves it for spot, unless it was promised to another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Placement, Shape, first_gpus
from sublet.kernel.changing import IN_TRANSIT
from sublet.kernel.cluster import Cluster, Node, NodePhase
from sublet.kernel.growing import Growing
from sublet.kernel.supply import Supply

NONE: frozenset[str] = frozenset()


class Placing:
    """Looks for room, and takes none."""

    def __init__(self, supply: Supply, growing: Growing) -> None:
        self._supply, self._cluster, self._growing = supply, supply.cluster, growing

    def kept(self, held: Placement, shape: Shape) -> Placement:
        """The part of its GPUs that a job may keep: of a grid, copies sit first and spares last, and these go first."""
        kept = self._cluster.healthy(held)
        if shape.grid is None:
            return kept
        on_demand, spot = (self._cluster.on_market(market, kept) for market in (Market.ON_DEMAND, Market.SPOT))
        return first_gpus((*on_demand, *spot) if on_demand and spot else kept, shape.gpus)

    def find(
        self,
        state: JobState,
        kept: Placement,
        now_s: float,
        *,
        shunned: Collection[str] = NONE,
        owed: int = 0,
        closed: Collection[Market] = (),
    ) -> Placement | None:
        """GPUs that bring it to its promised shape; None = not enough are free.

        `closed`: no more of these markets. `owed`: GPUs on demand that others were promised, kept for them.
        """
        if (shape := state.shape) is None:
            return None
        left = self._stays(kept, shape, NONE, owed)
        if left != kept and state.phase is Phase.RUNNING:  # where it goes back to must last, as what it grows onto
            shunned = self._growing.shunned(state, left, now_s) | frozenset(shunned)
            left = self._stays(kept, shape, shunned, owed)
        found = self._cluster.rearrange(
            shape.pool, left, shape.gpus, shunned, steady=shape.steady, owed=owed, closed=closed
        )
        if found is None or is_in_blocks(found, state.job.block):
            return found
        shut = {*closed, Market.ON_DEMAND} if owed else closed
        return find_blocks(self._cluster, shape.pool, left, shape.gpus, state.job.block, shunned=shunned, closed=shut)

    def waits_for(self, state: JobState, held: Placement) -> frozenset[Market]:
        """The markets that it keeps those behind it from: of a pool with both, one that it lacks GPUs of."""
        shape = state.shape
        if shape is None or not self._supply.pools[shape.pool].is_mixed:
            return frozenset(Market)
        if held and self._cluster.nodes[held[0][0]].offer.pool != shape.pool:
            return frozenset(Market)
        enough = shape.gpus - shape.steady <= self._cluster.spot_room(shape.pool, self._cluster.healthy(held))
        return frozenset({Market.ON_DEMAND if shape.steady and enough else Market.SPOT})

    def given_up(self, pool: str, owed: int = 0) -> list[Node]:
        """On-demand nodes beyond what is wanted, the emptiest first; none in a pool of one market.

        If more is `owed` on demand than is free or on its way, any of them may be: a job sits there without need.
        """
        if not self._supply.pools[pool].is_mixed:
            return []
        coming = self._cluster.requested  # these go first
        wanted = self._supply.pools[pool].markets[Market.ON_DEMAND]
        held, hold = self._cluster.held, self._supply.hold
        comes = any(
            coming[o] and held[o] - len(coming[o]) < hold[o] for o in wanted
        )  # and is not about to be given back
        if owed > self._cluster.free_on_demand(pool) and not comes:
            return self._cluster.in_use_beyond(dict.fromkeys(wanted, 0))
        return self._cluster.in_use_beyond({o: self._supply.hold[o] + len(coming[o]) for o in wanted})

    def _stays(self, kept: Placement, shape: Shape, shunned: Collection[str], owed: int) -> Placement:
        """The part of it that is not left for spot: nodes that are given up go whole, while spot has room.

        If a job lacks promised GPUs on demand, so many go as it lacks.
        """
        nodes = {node.id for node in self.given_up(shape.pool, owed)}
        if not nodes:
            return kept
        had, room = self._cluster.on_demand(kept), self._cluster.spot_room(shape.pool, kept, shunned)
        lack = max(0, owed - self._cluster.free_on_demand(shape.pool))
        whole, stay = not lack, dict(kept)
        for node_id, gpus in sorted(kept, key=lambda part: part[1]):
            goes = gpus if whole else min(gpus, had - shape.steady, lack)
            if node_id in nodes and goes > 0 and had - goes >= shape.steady and shape.gpus - (had - goes) <= room:
                stay[node_id] -= goes
                had, lack = had - goes, lack - goes
        return tuple((node_id, gpus) for node_id, gpus in stay.items() if gpus)


def is_in_blocks(placement: Placement, block: int) -> bool:
    """Every node has whole blocks of it."""
    return all(gpus % block == 0 for _, gpus in placement)


def find_blocks(
    cluster: Cluster,
    pool: str,
    kept: Placement,
    gpus: int,
    block: int,
    *,
    shunned: Collection[str] = frozenset(),
    closed: Collection[Market] = (),
) -> Placement | None:
    """`gpus` of them in whole blocks, on its own nodes first, then on spot, on as few nodes as can be; None = no room.

    Nothing more is taken of nodes that are shunned, nor of markets that are `closed`.
    """
    missing, share = gpus // block, {}
    for node_id, held in kept:
        share[node_id] = min(missing, held // block)
        missing -= share[node_id]

    def more_on(node: Node) -> int:
        shut = node.id in shunned or node.offer.market in closed
        return 0 if shut else node.free // block

    ready = [node for node in cluster.nodes.values() if node.phase is NodePhase.READY and node.offer.pool == pool]
    ready.sort(key=lambda n: (n.id not in share, n.offer.market is Market.ON_DEMAND, -more_on(n), n.number))
    for node in ready:
        more = min(missing, more_on(node))
        share[node.id] = share.get(node.id, 0) + more
        missing -= more
    return None if missing else tuple((node_id, count * block) for node_id, count in share.items() if count)


def owed(
    cluster: Cluster, pool: str, active: Iterable[JobState], placement: Mapping[str, Placement], but_to: str = ""
) -> int:
    """GPUs on demand that are still to come, in all: also to those that began without their spares."""
    gpus = 0
    for state in active:
        shape = state.shape
        if shape is not None and shape.pool == pool and shape.steady and state.job.id != but_to:
            gpus += max(0, shape.steady - cluster.on_demand(placement.get(state.job.id, ())))
    return gpus


def half_way(
    supply: Supply, pool: str, line: Iterable[str], active: Mapping[str, JobState], placement: Mapping[str, Placement]
) -> tuple[JobState, Shape, Placement] | None:
    """The first in line with as many GPUs as it was promised, and what is free on demand for spot GPUs of its own.

    None unless it has to be: other nodes of the pool may be on their way, or jobs that will leave some. Else two jobs
    wait for one another: one holds spot GPUs that it will leave for those on demand, the other sits on these without
    need and would go back to spot. What is free on demand would be paid for and idle meanwhile.
    """
    cluster, coming = supply.cluster, supply.coming(supply.pools[pool])
    free = cluster.free_on_demand(pool) if supply.pools[pool].is_mixed else 0
    if not free or coming or any(state.phase in IN_TRANSIT for state in active.values()):
        return None
    for job_id in line:
        state, held = active.get(job_id), placement.get(job_id, ())
        shape, had = None if state is None else state.shape, cluster.on_demand(held)
        if state is None or shape is None or state.phase is not Phase.RUNNING or state.gpus != shape.gpus:
            continue
        if had + free < shape.steady and cluster.healthy(held) == held:
            nearer = replace(shape, steady=had + free)
            found = cluster.rearrange(pool, held, shape.gpus, steady=nearer.steady)
            if found is not None:
                return state, nearer, found
    return None
