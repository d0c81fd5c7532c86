"""A shape after a hit: whether a whole copy of the model is among the survivors, and how fast they are.

A hit takes one spot node, or each of them with the chance that one reclaim takes (`Reclaims.share`), at least one.
Nodes on demand stay. A copy of the model is left if every part that has no seat on demand keeps a GPU: only how many of
its replicas each part lost matters, and these counts are multivariate hypergeometric, as in `solve.expectation`. That
is exact for GPUs that come one to a node, for copies that are whole nodes, and for nodes that hold whole copies.
Survivors that hold a copy among them can take any place: they go on in as many copies as their GPUs make, spares
included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sublet.domain.job import Change, Job
from sublet.domain.shape import Grid, Shape, packed
from sublet.perf.preemption.reclaims import Reclaims
from sublet.solve.arrays import Floats, Ints
from sublet.solve.coefficients import binomials, bounded_powers, choose, times

TINY = 1e-300  # in the place of 0, where 0 is divided by it

# C shapes, K nodes lost in one hit: 0, 1 ... up to all


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """The nodes of a job's shapes: how many may be taken, and what stands on those."""

    shapes: Sequence[Shape]
    per_node: int  # GPUs
    spot_C: Ints  # nodes that may be taken
    exposed_C: Ints  # GPUs on them
    wide_C: Ints  # replicas of each part that has none on demand, and
    deep_C: Ints  # how many such parts there are, in nodes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Survivors:
    """Each shape after one hit."""

    gone_C: Floats  # the chance that it leaves none
    none_left_C: Floats  # the chance that it leaves no whole copy; 0 where one is on demand
    share_C: Floats  # of the undisturbed speed, the mean of what is left where a copy is
    any_share_C: Floats  # the same where anybody is


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pausing:
    """The job's own pauses, after a hit as large as they are on average."""

    shrink_C: Floats  # until the survivors train
    grow_C: Floats  # until new nodes train with them
    refill_C: Floats  # until new nodes train in the place of those lost, where the survivors waited
    fresh_C: Floats  # from storage


def spot_nodes(shapes: Sequence[Shape], per_node: int) -> Ints:
    """As few nodes of each shape as hold what is not on demand."""
    return -(-np.array([shape.gpus - shape.steady for shape in shapes], dtype=np.intp) // per_node)


def nodes_of(shapes: Sequence[Shape], per_node: int, spot_C: Ints) -> Nodes:
    """The nodes of the shapes, if so many of them may be taken."""
    facts = [(each.gpus, each.steady, *_grid_of(each)) for each in shapes]
    gpus_C, steady_C, copies_C, parts_C = np.array(facts, dtype=np.intp).reshape(len(facts), 4).T
    parts_left_C = np.maximum(0, parts_C - steady_C)
    # A copy over several nodes is a grid of nodes; nodes with several copies are copies themselves.
    spans_C = parts_C > per_node
    wide_C = np.where(spans_C, copies_C, -(-(copies_C * parts_C - steady_C) // per_node))
    wide_C = np.clip(wide_C, 1, np.maximum(spot_C, 1))
    deep_C = np.minimum(np.where(spans_C, -(-parts_left_C // per_node), parts_left_C > 0), spot_C // wide_C)
    return Nodes(
        shapes=shapes, per_node=per_node, spot_C=spot_C, exposed_C=gpus_C - steady_C, wide_C=wide_C, deep_C=deep_C
    )


def survivors_of(reclaims: Reclaims, kind: Kind, nodes: Nodes) -> Survivors:
    """Each shape after a hit. Cost: O(C K), and more for what is new."""
    chance_CK = _lost_chance(reclaims.share, nodes.spot_C)
    most = chance_CK.shape[1] - 1
    whole_CK = chance_CK * _whole_chance(nodes, most)
    left_CK = _share_left(kind, nodes, most)
    exposed_C = nodes.exposed_C == [each.gpus for each in nodes.shapes]
    all_C = chance_CK[np.arange(len(nodes.shapes)), np.minimum(nodes.spot_C, most)]
    gone_C = np.where(exposed_C & (nodes.spot_C <= most), all_C, 0.0)
    none_left_C = np.clip(chance_CK.sum(axis=1) - whole_CK.sum(axis=1), 0.0, 1.0)
    return Survivors(
        gone_C=gone_C,
        none_left_C=none_left_C,
        share_C=(whole_CK * left_CK).sum(axis=1) / np.maximum(1.0 - none_left_C, TINY),
        any_share_C=(chance_CK * left_CK).sum(axis=1) / np.maximum(1.0 - gone_C, TINY),
    )


def pausing(reclaims: Reclaims, kind: Kind, nodes: Nodes) -> Pausing:
    """The job's own costs of changes. Cost: four questions for each new shape, if it has pauses of its own."""
    if kind.job.pauses is None:
        restart_C = np.full(len(nodes.shapes), kind.job.restart_s)
        return Pausing(shrink_C=restart_C, grow_C=restart_C, refill_C=restart_C, fresh_C=restart_C)
    chance_CK = _lost_chance(reclaims.share, nodes.spot_C)
    mean_C = np.rint(chance_CK @ np.arange(chance_CK.shape[1]))
    lost_C = np.minimum(mean_C * nodes.per_node, nodes.exposed_C).astype(np.intp)
    rows = [pauses_of(kind, shape, lost) for shape, lost in zip(nodes.shapes, lost_C.tolist(), strict=True)]
    shrink_C, grow_C, refill_C, fresh_C = np.array(rows, dtype=np.float64).reshape(len(rows), 4).T
    return Pausing(shrink_C=shrink_C, grow_C=grow_C, refill_C=refill_C, fresh_C=fresh_C)


def _lost_chance(share: float, spot_C: Ints) -> Floats:
    """The chance that a hit takes k of the nodes: one, or binomial, given that it takes any. Cost: O(C K)."""
    most = int(spot_C.max(initial=0))
    if share == 0.0:
        return np.stack([np.zeros(len(spot_C)), (spot_C > 0).astype(np.float64)], axis=1)[:, : most + 1]
    spot_S, back_C = np.unique(spot_C, return_inverse=True)
    lost_K = np.arange(most + 1)
    ways_SK = binomials(spot_S, most)
    kept_SK = np.where(ways_SK > 0, (1.0 - share) ** np.maximum(spot_S[:, None] - lost_K, 0), 0.0)
    chance_SK = ways_SK * share**lost_K * kept_SK
    chance_SK[:, 0] = 0.0
    struck_S1: Floats = chance_SK.sum(axis=1, keepdims=True)
    return np.asarray((chance_SK / np.maximum(struck_S1, TINY))[back_C])


def _whole_chance(nodes: Nodes, most: int) -> Floats:
    """The chance that every part keeps a replica, if k nodes are lost."""
    each = zip(nodes.spot_C.tolist(), nodes.wide_C.tolist(), nodes.deep_C.tolist(), strict=True)
    return _padded([whole_chances(*facts, min(facts[0], most)) for facts in each], most)


def _share_left(kind: Kind, nodes: Nodes, most: int) -> Floats:
    """The rest of the speed of a shape, if k nodes are lost."""
    each = zip(nodes.shapes, nodes.spot_C.tolist(), strict=True)
    return _padded([shares_left(kind, shape, spot, min(spot, most)) for shape, spot in each], most)


def _padded(rows: Sequence[Floats], most: int) -> Floats:
    """Rows of 0, 1 ... nodes lost side by side; none loses more than there are."""
    found_CK = np.zeros((len(rows), most + 1))
    long_C = np.array([len(row) for row in rows])
    found_CK[np.arange(most + 1) < long_C[:, None]] = np.concatenate(rows)
    return found_CK


def _grid_of(shape: Shape) -> tuple[int, int]:
    return (shape.gpus, 1) if shape.grid is None else (shape.grid.copies, shape.grid.parts)


# ---------------------------------------------------------------------- kinds of jobs


KINDS = 1024  # that are kept, and
ROWS = 1 << 16  # of all of them together: a number for each node that may be lost

# K nodes lost in one hit: 0, 1 ...


class Kind:
    """Jobs that are as fast as each other on nodes like these, and pause as long. Make it with `kind_of`."""

    __slots__ = ("gpu", "job", "per_node", "rates")

    def __init__(self, job: Job, gpu: str, per_node: int) -> None:
        self.job = job  # one of them
        self.gpu = gpu
        self.per_node = per_node
        self.rates: dict[tuple[int, int, int, int | None], float] = {}

    def rate(self, like: Shape, gpus: int) -> float:
        """The rate of so many survivors of a shape, at the beginning.

        The place of its GPUs makes none of them faster.
        """
        copies, parts = 0, 0
        if like.grid is not None:
            copies, parts = min(like.grid.copies, gpus // like.grid.parts), like.grid.parts
        if gpus < self.job.min_gpus or (parts and not copies):
            return 0.0
        key = (gpus, copies, parts, like.batch)
        if key not in self.rates:
            left = replace(like, gpus=gpus, steady=0, grid=Grid(copies, parts) if parts else None)
            self.rates[key] = self.job.speed_on(left).rate(self.gpu, packed(gpus, self.per_node), 0.0)
        return self.rates[key]


def kind_of(job: Job, gpu: str, per_node: int) -> Kind:
    """The same one for all jobs that are alike in this."""
    return _kind(_Alike(job), gpu, per_node)


@lru_cache(maxsize=ROWS)
def shares_left(kind: Kind, shape: Shape, spot: int, most: int) -> Floats:
    """The rest of the speed of a shape with so many nodes on spot, if up to `most` of them are lost."""
    share_K = np.zeros(most + 1)
    if not (whole := kind.rate(shape, shape.gpus)) > 0.0:
        return share_K
    exposed = shape.gpus - shape.steady
    for lost in range(1, most + 1):
        gone = exposed if lost == spot else min(lost * kind.per_node, exposed)
        share_K[lost] = min(1.0, kind.rate(shape, shape.gpus - gone) / whole)
    return share_K


@lru_cache(maxsize=ROWS)
def pauses_of(kind: Kind, shape: Shape, lost: int) -> tuple[float, float, float, float]:
    """To shrink to the survivors, to grow again, to fill the places of the lost, to begin anew."""
    job, left = kind.job, _left_of(kind.job, shape, lost)
    refill_s = job.pause_s(Change(was=shape, now=shape, lost=lost))
    fresh_s = job.pause_s(Change(was=None, now=shape))
    if left is None:
        return refill_s, refill_s, refill_s, fresh_s
    return (
        job.pause_s(Change(was=shape, now=left, lost=lost)),
        job.pause_s(Change(was=left, now=shape)),
        refill_s,
        fresh_s,
    )


@lru_cache(maxsize=ROWS)
def whole_chances(spot: int, wide: int, deep: int, most: int) -> Floats:
    """The chance that every part keeps a replica, if k nodes are lost: of all ways to lose k, those that leave one."""
    wide_1 = np.array([wide])
    ways_1K = bounded_powers(wide_1, wide_1 - 1, np.array([deep]), most)
    ways_1K = times(ways_1K, binomials(np.array([spot - wide * deep]), most))
    return np.asarray(ways_1K[0] / np.maximum(choose(spot, np.arange(most + 1)), 1.0))


# ---------------------------------------------------------------------- equal nodes, and the rest


class _Alike:
    """A job, to be looked up by what its speed and its pauses follow from."""

    __slots__ = ("job", "key")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.key = (job.speed, job.min_gpus, job.restart_s, job.pauses)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self.key == other.key


@lru_cache(maxsize=KINDS)
def _kind(alike: _Alike, gpu: str, per_node: int) -> Kind:
    return Kind(alike.job, gpu, per_node)


def _left_of(job: Job, shape: Shape, lost: int) -> Shape | None:
    """The shape in which survivors go on; None where they cannot."""
    gpus = shape.gpus - lost
    if gpus < job.min_gpus:
        return None
    if shape.grid is None:
        return replace(shape, gpus=gpus, steady=min(shape.steady, gpus))
    copies = min(shape.grid.copies, gpus // shape.grid.parts)
    return replace(shape, gpus=gpus, grid=Grid(copies, shape.grid.parts)) if copies else None
