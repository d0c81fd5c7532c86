"""The nodes we hold and which GPUs of them are free.

Free GPUs are kept in buckets (pool, market, free GPUs on the node) -> nodes, so finding room costs the nodes used and
the size of a node, not the size of the cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Packing
from sublet.domain.seats import Seats, seats
from sublet.domain.shape import Grid, Placement

Room = tuple[str, Market]  # the nodes of a pool that are of one market


class NodePhase(StrEnum):
    """Phase of a node."""

    REQUESTED = "requested"
    READY = "ready"
    NOTICED = "noticed"  # the cloud will take it: no new work, and what is on it should leave
    RELEASING = "releasing"


class Node:
    """One rented node and the jobs on it."""

    __slots__ = ("free", "gone_by_us", "id", "jobs", "number", "offer", "phase")

    def __init__(self, node_id: str, offer: Offer, number: int) -> None:
        self.id, self.offer, self.number = node_id, offer, number  # how many were asked for before
        self.phase = NodePhase.REQUESTED
        self.free = offer.gpus_per_node
        self.jobs: dict[str, int] = {}  # job -> GPUs
        self.gone_by_us: int | None = None  # it is being given up: the latest end of its bill

    @property
    def idle(self) -> bool:
        """No job is on it."""
        return not self.jobs


class Cluster:
    """All nodes, and room for jobs on those that are ready."""

    def __init__(self) -> None:
        self.packing = Packing.TIGHT
        self.nodes: dict[str, Node] = {}
        self.held: dict[str, int] = defaultdict(int)  # offer -> nodes requested or ready
        self.leaving: dict[str, int] = defaultdict(int)  # offer -> nodes noticed or being given back
        self.free_gpus: dict[str, int] = defaultdict(int)  # pool -> GPUs free on ready nodes
        self.idle: dict[str, dict[str, None]] = defaultdict(dict)  # offer -> ready nodes without jobs
        self.requested: dict[str, dict[str, None]] = defaultdict(dict)  # offer -> nodes on their way
        self._noticed: dict[str, None] = {}
        self._added = 0
        self._free: dict[Room, int] = defaultdict(int)  # GPUs, as in `free_gpus`
        self._rooms: dict[Room, list[dict[str, None]]] = {}  # [free GPUs] -> ready nodes

    def add(self, node_id: str, offer: Offer) -> None:
        """A node was asked for."""
        self.nodes[node_id] = Node(node_id, offer, self._added)
        self._added += 1
        self.held[offer.id] += 1
        self.requested[offer.id][node_id] = None
        self._rooms.setdefault((offer.pool, offer.market), [{} for _ in range(offer.gpus_per_node + 1)])

    def ready(self, node: Node) -> None:
        """It can take work."""
        del self.requested[node.offer.id][node.id]
        node.phase = NodePhase.READY
        self._show(node)

    def lose_touch(self, node: Node) -> None:
        """It is ready no more, and may be again: as if it were on its way."""
        self._hide(node)
        node.phase = NodePhase.REQUESTED
        self.requested[node.offer.id][node.id] = None

    def withdraw(self, node: Node, phase: NodePhase) -> None:
        """It takes no more work (noticed or being released)."""
        if node.phase is NodePhase.READY:
            self._hide(node)
        if node.phase is NodePhase.REQUESTED:
            del self.requested[node.offer.id][node.id]
        if node.phase in (NodePhase.READY, NodePhase.REQUESTED):
            self.held[node.offer.id] -= 1
            self.leaving[node.offer.id] += 1
        self._noticed.pop(node.id, None)
        if phase is NodePhase.NOTICED:
            self._noticed[node.id] = None
        node.phase = phase

    def idle_noticed(self) -> list[Node]:
        """Nodes that the cloud will take and that no job is on any more."""
        return [self.nodes[node_id] for node_id in self._noticed if self.nodes[node_id].idle]

    def in_use_beyond(self, wanted: Mapping[str, int]) -> list[Node]:
        """Ready nodes beyond what is wanted of their offer, the emptiest first: in the way of others, or too dear."""
        nodes: list[Node] = []
        for offer_id, most in wanted.items():
            excess = self.held[offer_id] - most
            if excess > 0:
                ready = [n for n in self.nodes.values() if n.offer.id == offer_id and n.phase is NodePhase.READY]
                nodes += sorted(ready, key=lambda node: -node.free)[:excess]
        return nodes

    def remove(self, node: Node) -> None:
        """It is gone."""
        self.withdraw(node, NodePhase.RELEASING)
        self.leaving[node.offer.id] -= 1
        del self.nodes[node.id]

    def healthy(self, placement: Placement) -> Placement:
        """The part of a placement on nodes that stay."""
        nodes = self.nodes
        return tuple((n, g) for n, g in placement if nodes[n].phase is NodePhase.READY)

    def on_market(self, market: Market, placement: Placement) -> Placement:
        """The part of a placement on nodes of this market."""
        return tuple(part for part in placement if self.nodes[part[0]].offer.market is market)

    def on_demand(self, placement: Placement) -> int:
        """How many of its GPUs are on demand."""
        return sum(gpus for _, gpus in self.on_market(Market.ON_DEMAND, placement))

    def seats(self, placement: Placement, grid: Grid) -> Seats:
        """The seats of a grid in this placement."""
        return seats(placement, grid, {node_id for node_id, _ in self.on_market(Market.ON_DEMAND, placement)})

    def spot_room(self, pool: str, placement: Placement, shunned: Collection[str] = frozenset()) -> int:
        """GPUs of spot nodes open to a job with this placement: its own, and those free."""
        ours = sum(gpus for _, gpus in self.on_market(Market.SPOT, placement))
        return ours + self._open((pool, Market.SPOT), shunned)

    def free_on_demand(self, pool: str) -> int:
        """Free GPUs on nodes that are ready."""
        return self._free[pool, Market.ON_DEMAND]

    def rearrange(
        self,
        pool: str,
        kept: Placement,
        gpus: int,
        shunned: Collection[str] = frozenset(),
        *,
        steady: int = 0,
        owed: int = 0,
        closed: Collection[Market] = (),
    ) -> Placement | None:
        """A placement of `gpus` GPUs that keeps as much of `kept` as it can; None when there is not enough room.

        `steady` of them, at least, are on demand. The rest is on spot, as far as there is room, but for what is on
        demand already. Those that it keeps come first, then those on demand. Nothing more is taken of nodes that are
        shunned, nor of markets that are `closed`. Jobs whose GPUs spot lacks leave the on-demand ones that are `owed`
        to others.
        """
        ahead = self.on_market(Market.ON_DEMAND, kept)
        had = sum(count for _, count in ahead)
        sure = max(steady, gpus - self.spot_room(pool, kept, shunned), min(had, gpus))
        if Market.ON_DEMAND in closed and sure > had:
            return None
        if Market.SPOT in closed and gpus - max(steady, min(had, gpus)) > sum(
            count for _, count in self.on_market(Market.SPOT, kept)
        ):
            return None
        if sure > max(steady, had) and sure - had + owed > self._open((pool, Market.ON_DEMAND), shunned):
            return None
        first = self._arrange((pool, Market.ON_DEMAND), ahead, sure, shunned)
        if first is None:
            return None
        then = self._arrange((pool, Market.SPOT), self.on_market(Market.SPOT, kept), gpus - sure, shunned)
        if then is None:
            return None
        found = dict((*first, *then))
        ours = [(node_id, found.pop(node_id)) for node_id, _ in kept if node_id in found]  # in their order
        return (*ours, *found.items())

    def _open(self, room: Room, shunned: Collection[str]) -> int:
        """GPUs free on nodes that are not shunned."""
        nodes = (self.nodes[node_id] for node_id in shunned)
        shut = sum(n.free for n in nodes if n.phase is NodePhase.READY and n.offer.market is room[1])
        return self._free[room] - shut

    def _arrange(self, room: Room, kept: Placement, gpus: int, shunned: Collection[str]) -> Placement | None:
        """As `rearrange`, on one market.

        Shrinking leaves the nodes with the smallest share first. Growing fills the job's own nodes, then whole nodes,
        then the tightest fit; when nothing fits whole, the emptiest nodes, so that a job spans as few as possible.
        (With `Packing.EMPTIEST`: the job's own nodes, then always the emptiest.)
        """
        missing = gpus - sum(g for _, g in kept)
        if missing == 0:
            return kept
        if missing > self._open(room, shunned):
            return None
        share = dict(kept)
        if missing < 0:
            for node_id, held in sorted(kept, key=lambda part: part[1]):
                left = max(0, held + missing)
                missing += held - left
                share[node_id] = left
                if missing == 0:
                    break
            return tuple((n, g) for n, g in share.items() if g)
        for node_id in share:
            more = 0 if node_id in shunned else min(missing, self.nodes[node_id].free)
            share[node_id] += more
            missing -= more
        rooms = self._rooms[room]
        size = len(rooms) - 1
        taken = dict.fromkeys([*share, *shunned], True)
        while missing:
            if self.packing is Packing.EMPTIEST:
                node_id = self._emptiest(rooms, taken)
            else:
                fitting = range(missing, size + 1) if missing < size else (size,)
                node_id = _first(rooms, fitting, taken) or _first(rooms, range(size, 0, -1), taken)
            more = min(missing, self.nodes[node_id].free)
            share[node_id] = more
            taken[node_id] = True
            missing -= more
        return tuple(share.items())

    def _emptiest(self, rooms: list[dict[str, None]], taken: dict[str, bool]) -> str:
        """The oldest of the nodes with most room that are not taken."""
        most = next(nodes for nodes in reversed(rooms) if nodes.keys() - taken.keys())
        return min(most.keys() - taken.keys(), key=lambda node_id: self.nodes[node_id].number)

    def take(self, job_id: str, node_id: str, gpus: int) -> None:
        """`job_id` now holds `gpus` more GPUs of this node."""
        node = self.nodes[node_id]
        visible = node.phase is NodePhase.READY
        if visible:
            self._hide(node)
        node.free -= gpus
        node.jobs[job_id] = node.jobs.get(job_id, 0) + gpus
        if visible:
            self._show(node)

    def give(self, job_id: str, node_id: str, gpus: int) -> None:
        """`job_id` leaves `gpus` GPUs of this node."""
        node = self.nodes[node_id]
        visible = node.phase is NodePhase.READY
        if visible:
            self._hide(node)
        node.free += gpus
        left = node.jobs[job_id] - gpus
        if left:
            node.jobs[job_id] = left
        else:
            del node.jobs[job_id]
        if visible:
            self._show(node)

    def reoffer(self, offers: Mapping[str, Offer]) -> None:
        """Nodes follow their offers; the size of a node may be another one where none is held."""
        for node in self.nodes.values():
            node.offer = offers[node.offer.id]
        held = {node.offer.pool for node in self.nodes.values()}
        self._rooms = {room: rooms for room, rooms in self._rooms.items() if room[0] in held}

    def facts(self) -> dict[str, Any]:
        """For a snapshot. The order of a list decides the choice, so the lists are part of it."""
        return {
            "packing": self.packing.value,
            "nodes": [
                [n.id, n.offer.id, n.number, n.phase.value, n.free, dict(n.jobs), n.gone_by_us]
                for n in self.nodes.values()
            ],
            "added": self._added,
            "idle": {offer_id: list(nodes) for offer_id, nodes in self.idle.items() if nodes},
            "requested": {offer_id: list(nodes) for offer_id, nodes in self.requested.items() if nodes},
            "noticed": list(self._noticed),
            "rooms": _by_pool(self._rooms),
        }

    def restore(self, facts: Mapping[str, Any], offers: Mapping[str, Offer]) -> None:
        """Go on from there."""
        self.packing, self._added = Packing(facts["packing"]), facts["added"]
        for node_id, offer_id, number, phase, free, jobs, gone_by_us in facts["nodes"]:
            node = self.nodes[node_id] = Node(node_id, offers[offer_id], number)
            node.phase, node.free, node.jobs, node.gone_by_us = NodePhase(phase), free, dict(jobs), gone_by_us
            held = node.phase in (NodePhase.READY, NodePhase.REQUESTED)
            (self.held if held else self.leaving)[offer_id] += 1
            if node.phase is NodePhase.READY:
                self.free_gpus[node.offer.pool] += free
                self._free[node.offer.pool, node.offer.market] += free
        self.idle.update((offer_id, dict.fromkeys(nodes)) for offer_id, nodes in facts["idle"].items())
        self.requested.update((offer_id, dict.fromkeys(nodes)) for offer_id, nodes in facts["requested"].items())
        self._noticed = dict.fromkeys(facts["noticed"])
        for node in self.nodes.values():
            self._rooms.setdefault(
                (node.offer.pool, node.offer.market), [{} for _ in range(node.offer.gpus_per_node + 1)]
            )
        for pool, rooms in facts["rooms"].items():
            for free, node_id in ((free, node_id) for free, nodes in enumerate(rooms) for node_id in nodes):
                self._rooms[pool, self.nodes[node_id].offer.market][free][node_id] = None

    def _show(self, node: Node) -> None:
        self._rooms[node.offer.pool, node.offer.market][node.free][node.id] = None
        self._free[node.offer.pool, node.offer.market] += node.free
        self.free_gpus[node.offer.pool] += node.free
        if node.idle:
            self.idle[node.offer.id][node.id] = None

    def _hide(self, node: Node) -> None:
        del self._rooms[node.offer.pool, node.offer.market][node.free][node.id]
        self._free[node.offer.pool, node.offer.market] -= node.free
        self.free_gpus[node.offer.pool] -= node.free
        self.idle[node.offer.id].pop(node.id, None)


def _by_pool(rooms: Mapping[Room, list[dict[str, None]]]) -> dict[str, list[list[str]]]:
    """[free GPUs] -> nodes of both markets, in an order of their own: which is of which is known of a node."""
    found: dict[str, list[list[str]]] = {}
    for (pool, _), buckets in sorted(rooms.items(), key=lambda each: each[0]):
        both = found.setdefault(pool, [[] for _ in buckets])
        for nodes, more in zip(both, buckets, strict=True):
            nodes.extend(more)
    return {pool: both for pool, both in found.items() if any(both)}


def _first(rooms: list[dict[str, None]], sizes: range | tuple[int, ...], taken: dict[str, bool]) -> str:
    """The longest-listed node with room of one of these sizes, in this order, that is not taken; "" if none."""
    for free in sizes:
        for node_id in rooms[free]:
            if node_id not in taken:
                return node_id
    return ""
