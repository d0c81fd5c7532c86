"""The nodes we hold and which GPUs of them are free.

Free GPUs are kept in buckets (pool, free GPUs on the node) -> nodes, so finding room costs the nodes used and the
size of a node, not the size of the cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from sublet.domain.offer import Offer
from sublet.domain.plan import Packing
from sublet.domain.shape import Placement

__all__ = ["Cluster", "Node", "NodePhase"]


class NodePhase(StrEnum):
    """Where a node stands."""

    REQUESTED = "requested"
    READY = "ready"
    NOTICED = "noticed"  # the cloud will take it: no new work, and what is on it should leave
    RELEASING = "releasing"


class Node:
    """One rented node and who is on it."""

    __slots__ = ("free", "gone_by_us", "id", "jobs", "number", "offer", "phase")

    def __init__(self, node_id: str, offer: Offer, number: int) -> None:
        self.id, self.offer, self.number = node_id, offer, number  # how many were asked for before
        self.phase = NodePhase.REQUESTED
        self.free = offer.gpus_per_node
        self.jobs: dict[str, int] = {}  # job -> GPUs
        self.gone_by_us: int | None = None  # it is being given up: the latest end of its bill

    @property
    def idle(self) -> bool:
        """Nobody is on it."""
        return not self.jobs


class Cluster:
    """All nodes, and room for jobs on those that are ready."""

    def __init__(self) -> None:
        self.packing = Packing.TIGHT
        self.nodes: dict[str, Node] = {}
        self.held: dict[str, int] = defaultdict(int)  # offer -> nodes requested or ready
        self.leaving: dict[str, int] = defaultdict(int)  # offer -> nodes noticed or being given back
        self.free_gpus: dict[str, int] = defaultdict(int)  # pool -> GPUs free on ready nodes
        self.idle: dict[str, dict[str, None]] = defaultdict(dict)  # offer -> ready nodes with nobody on them
        self.requested: dict[str, dict[str, None]] = defaultdict(dict)  # offer -> nodes on their way
        self._noticed: dict[str, None] = {}
        self._added = 0
        self._rooms: dict[str, list[dict[str, None]]] = {}  # pool -> [free GPUs] -> ready nodes

    def add(self, node_id: str, offer: Offer) -> None:
        """A node was asked for."""
        self.nodes[node_id] = Node(node_id, offer, self._added)
        self._added += 1
        self.held[offer.id] += 1
        self.requested[offer.id][node_id] = None
        self._rooms.setdefault(offer.pool, [{} for _ in range(offer.gpus_per_node + 1)])

    def ready(self, node: Node) -> None:
        """It can take work."""
        del self.requested[node.offer.id][node.id]
        node.phase = NodePhase.READY
        self._show(node)

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
        """Nodes that the cloud will take and that nobody is on any more."""
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

    def rearrange(
        self, pool: str, kept: Placement, gpus: int, shunned: Collection[str] = frozenset()
    ) -> Placement | None:
        """A placement of `gpus` GPUs that keeps as much of `kept` as it can; None when there is not enough room.

        Nothing more is taken of nodes that are shunned.

        Shrinking leaves the nodes with the smallest share first. Growing fills the job's own nodes, then whole nodes,
        then the tightest fit; when nothing fits whole, the emptiest nodes, so that a job spans as few as possible.
        (With `Packing.EMPTIEST`: the job's own nodes, then always the emptiest.)
        """
        missing = gpus - sum(g for _, g in kept)
        shut = sum(self.nodes[n].free for n in shunned if self.nodes[n].phase is NodePhase.READY)
        if missing > self.free_gpus[pool] - shut:
            return None
        if missing == 0:
            return kept
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
        rooms = self._rooms[pool]
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
        self._rooms = {pool: rooms for pool, rooms in self._rooms.items() if pool in held}

    def facts(self) -> dict[str, Any]:
        """For a snapshot. Who comes first in a list decides who is chosen, so the lists are part of it."""
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
            "rooms": {pool: [list(nodes) for nodes in rooms] for pool, rooms in self._rooms.items()},
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
        self.idle.update((offer_id, dict.fromkeys(nodes)) for offer_id, nodes in facts["idle"].items())
        self.requested.update((offer_id, dict.fromkeys(nodes)) for offer_id, nodes in facts["requested"].items())
        self._noticed = dict.fromkeys(facts["noticed"])
        self._rooms = {pool: [dict.fromkeys(nodes) for nodes in rooms] for pool, rooms in facts["rooms"].items()}

    def _show(self, node: Node) -> None:
        self._rooms[node.offer.pool][node.free][node.id] = None
        self.free_gpus[node.offer.pool] += node.free
        if node.idle:
            self.idle[node.offer.id][node.id] = None

    def _hide(self, node: Node) -> None:
        del self._rooms[node.offer.pool][node.free][node.id]
        self.free_gpus[node.offer.pool] -= node.free
        self.idle[node.offer.id].pop(node.id, None)


def _first(rooms: list[dict[str, None]], sizes: range | tuple[int, ...], taken: dict[str, bool]) -> str:
    """The longest-listed node with room of one of these sizes, in this order, that is not taken; "" if none."""
    for free in sizes:
        for node_id in rooms[free]:
            if node_id not in taken:
                return node_id
    return ""
