"""Shapes of one kind of job after losses, on any market: asked once for each, and kept.

Markets change with every node that is taken, and jobs hardly ever. So what depends on a job, a shape and how many are
lost is kept by these, and only how likely that is is computed anew.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from sublet.domain.job import Change, Job
from sublet.domain.shape import Grid, Shape, packed
from sublet.solve.arrays import Floats
from sublet.solve.coefficients import binomials, bounded_powers, choose, times

__all__ = ["Kind", "kind_of", "pauses_of", "shares_left", "whole_chances"]

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
