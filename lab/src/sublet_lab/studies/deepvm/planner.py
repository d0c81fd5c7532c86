"""DeepVM's planner as published: the cluster of spot GPUs with the most `FLOPP x nodes x K(nodes)` for USD per hour.

Four stages: (1) the user states a price per hour; (2) every machine gets its FLOPP, score per dollar. (3) For each
architecture the best numbers of nodes are searched; (4) the top three of both are merged. In the *single* architecture
one of the training nodes is on demand and keeps the checkpoints. In the *tiering* one machines without GPUs do, enough
of them that their networks are not full.

The paper speaks of a linear program, the released planner enumerates. Both are here (`deepvm_program` has the former),
with the planner's limits kept: it never considers one node, nor what a run costs in all, nor that nodes are taken away.

>>> [f"{found} for {found.usd_per_h:.4f}" for found in planned(3.0, AWS, ANCHORS)[:2]]
['17 x g4dn.xlarge spot + 1 x c5.xlarge for 2.8526', '17 x g4dn.xlarge spot + 1 x m6i.xlarge for 2.8746']
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sublet.domain.quantity import at_least
from sublet_lab.studies.deepvm.facts import ANCHORS, AWS, SCALING_S, VIRTUAL, Anchor, Trainer, senders_per_anchor

__all__ = [
    "ANCHORS",
    "AWS",
    "SCALING_S",
    "USUAL",
    "VIRTUAL",
    "Anchor",
    "Cluster",
    "Keeping",
    "Trainer",
    "clusters",
    "cost_first",
    "performance_first",
    "planned",
    "planned_without_scaling",
    "units",
]

TOP = 3
UNITS_PER_USD = 10_000  # prices are compared as whole numbers, so that 0.1 + 0.2 fits into 0.3; all are such multiples


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Size of a checkpoint, in the planner's units of 100 MB, and the share of it that a server must hold."""

    checkpoint: float = 2.0
    buffer: float = 0.5

    def __post_init__(self) -> None:
        at_least("checkpoint", self.checkpoint, 0.0)
        at_least("buffer", self.buffer, 0.0)

    def fits(self, anchor: Anchor) -> bool:
        """The published row, units and all: GB of memory against 100 MB times a share. It never binds."""
        return anchor.mem_gib >= self.checkpoint * self.buffer


USUAL = Keeping()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes that train and their checkpoint server: `anchor` is None where the first node is it, on demand."""

    trainer: Trainer
    nodes: int
    anchor: Anchor | None = None
    anchors: int = 0

    @property
    def usd_per_h(self) -> float:
        """Rent of all nodes."""
        spot = units(self.trainer.spot_usd_per_h)
        if self.anchor is None:
            return (units(self.trainer.on_demand_usd_per_h) + (self.nodes - 1) * spot) / UNITS_PER_USD
        return (self.nodes * spot + self.anchors * units(self.anchor.usd_per_h)) / UNITS_PER_USD

    @property
    def objective(self) -> float:
        """The planner's objective."""
        return self.trainer.flopp * self.nodes * self.trainer.factor(self.nodes)

    @property
    def performance(self) -> float:
        """Performance as the paper's simulation reports it."""
        return self.trainer.performance(self.nodes)

    def __str__(self) -> str:
        if self.anchor is None:
            return f"1 x {self.trainer.name} on demand + {self.nodes - 1} x spot"
        return f"{self.nodes} x {self.trainer.name} spot + {self.anchors} x {self.anchor.name}"


def planned(
    usd_per_h: float, trainers: Sequence[Trainer], anchors: Sequence[Anchor], keeping: Keeping = USUAL
) -> list[Cluster]:
    """The published answer: the top three, best first; among equals the first machine of the list, not the cheapest."""
    return _top(clusters(usd_per_h, trainers, anchors, keeping), scaling=True)


def planned_without_scaling(
    usd_per_h: float, trainers: Sequence[Trainer], anchors: Sequence[Anchor], keeping: Keeping = USUAL
) -> Cluster | None:
    """The paper's ablation: as if every node added its full speed."""
    found = _top(clusters(usd_per_h, trainers, anchors, keeping), scaling=False)
    return found[0] if found else None


def cost_first(usd_per_h: float, trainers: Sequence[Trainer]) -> Cluster | None:
    """As many nodes as can be had, one of them on demand; None if not even two are affordable."""
    found = [cluster for each in trainers if (cluster := _fill_with_spot(usd_per_h, each)) is not None]
    return max(found, key=lambda cluster: cluster.nodes, default=None)


def performance_first(usd_per_h: float, trainers: Sequence[Trainer]) -> Cluster | None:
    """As many nodes as can be had of the machine with the highest score of which two are affordable."""
    found = [cluster for each in trainers if (cluster := _fill_with_spot(usd_per_h, each)) is not None]
    return max(found, key=lambda cluster: cluster.trainer.score, default=None)


def clusters(
    usd_per_h: float, trainers: Sequence[Trainer], anchors: Sequence[Anchor], keeping: Keeping = USUAL
) -> list[Cluster]:
    """Every cluster that the planner may choose: tiering first, then single servers, in the order of the lists.

    For each number of training nodes only the least number of servers is listed: more of them cost more and change
    nothing that the planner looks at. Cost: O(trainers x servers x nodes).

    >>> len(clusters(0.4, VIRTUAL, ANCHORS))
    60
    """
    return [*_tiering(usd_per_h, trainers, anchors, keeping), *_single_anchor(usd_per_h, trainers)]


def _tiering(
    usd_per_h: float, trainers: Sequence[Trainer], anchors: Sequence[Anchor], keeping: Keeping
) -> Iterator[Cluster]:
    cap = units(usd_per_h)
    for trainer in trainers:
        spot = units(trainer.spot_usd_per_h)
        for anchor in anchors:
            if not keeping.fits(anchor):
                continue
            senders, each = senders_per_anchor(trainer, anchor), units(anchor.usd_per_h)
            for nodes in range(1, trainer.most + 1):
                needed = nodes // senders + 1  # the least whole number with nodes / needed < senders
                if nodes * spot + needed * each > cap or needed > anchor.most:
                    break
                yield Cluster(trainer=trainer, nodes=nodes, anchor=anchor, anchors=needed)


def _single_anchor(usd_per_h: float, trainers: Sequence[Trainer]) -> Iterator[Cluster]:
    for trainer in trainers:
        filled = _fill_with_spot(usd_per_h, trainer)
        for nodes in range(2, min(filled.nodes, trainer.most) + 1) if filled else ():
            yield Cluster(trainer=trainer, nodes=nodes)


def _top(found: Sequence[Cluster], *, scaling: bool) -> list[Cluster]:
    """The top three of each architecture, merged; `sorted` keeps the order of equals, as the released planner does."""

    def value(cluster: Cluster) -> float:
        return cluster.objective if scaling else cluster.trainer.flopp * cluster.nodes

    merged = []
    for single in (False, True):
        own = (cluster for cluster in found if (cluster.anchor is None) is single)
        merged += sorted(own, key=value, reverse=True)[:TOP]
    return sorted(merged, key=value, reverse=True)[:TOP]


def _fill_with_spot(usd_per_h: float, trainer: Trainer) -> Cluster | None:
    """One node on demand and as many on spot as fit, at least one."""
    spare = units(usd_per_h) - units(trainer.on_demand_usd_per_h)
    spots = min(spare // units(trainer.spot_usd_per_h), trainer.most) if spare > 0 else 0
    return Cluster(trainer=trainer, nodes=1 + spots) if spots > 0 else None


def units(usd_per_h: float) -> int:
    """Ten-thousandths of a dollar, whole."""
    return math.floor(usd_per_h * UNITS_PER_USD + 0.5)
