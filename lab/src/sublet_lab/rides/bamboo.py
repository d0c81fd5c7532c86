"""Bamboo, replayed: pipelines of a fixed depth in which every instance can stand in for its neighbour.

A lost stage is taken over by the one before it, at once, and its pipeline runs slower; two neighbours lost at a time
are fatal. The constants are those of its simulator. Redundant work while nothing is lost is not charged, and speeds are
those of the table without it: this is kind to Bamboo.

This is a replay of its own and no policy of the kernel. A pipeline with a stand-in is a grid of more places than it has
GPUs, which is no shape, and the assignment of stand-ins is a memory that no snapshot has.
"""

from __future__ import annotations

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.perf.parcae import SPOT_USD_PER_H
from sublet_lab.rides.record import Record, RideMoment
from sublet_lab.rides.ride import RideResult

BAMBOO_DEEP = {"bert": 12, "resnet152": 8, "gpt-1.5b": 9, "gpt-6.7b": 16}  # its own for two, half as deep again for GPT
GLOBAL_S = 30.0  # everyone meets anew
LOCAL_S = 12.5  # a neighbour takes over: 5 to 20 s
SLOWER = 1.5  # a pipeline with a stand-in
OVERLOADED = 0.05  # twice the share of stand-ins above which pipelines are formed anew


def replay_bamboo(
    job: SpotJob, record: Record, *, deep: int | None = None, usd_per_h: float = SPOT_USD_PER_H, seed: int = 0
) -> RideResult:
    """Over a record, with all instances held; victims are drawn with `seed`."""
    pipelines = _Pipelines(job, BAMBOO_DEEP[job.name] if deep is None else deep, np.random.default_rng(seed))
    samples = instance_s = suspended_s = left_s = 0.0
    changes, shapes = 0, [(0.0, SUSPENDED)]
    for place, moment in enumerate(record.moments()):
        pause_s = pipelines.meet(moment, first=not place)
        left_s = max(pause_s, left_s)
        config, speed = pipelines.config, pipelines.speed
        samples += speed * float(job.rate_C[config]) * max(0.0, moment.lasts_s - left_s)
        left_s = max(0.0, left_s - moment.lasts_s)
        instance_s += moment.now * moment.lasts_s
        suspended_s += moment.lasts_s * (config == SUSPENDED)
        changes += pause_s > 0
        if config != shapes[-1][1]:
            shapes.append((moment.at_s, config))
    return RideResult(
        samples=samples,
        usd=usd_per_h * instance_s / SECONDS_PER_H,
        on_demand_h=0.0,
        changes=changes,
        suspended_s=suspended_s,
        shapes=tuple(shapes),
        decision_s=(),
    )


class _Pipelines:
    """The pipelines, their instances and their stand-ins."""

    def __init__(self, job: SpotJob, deep: int, rng: np.random.Generator) -> None:
        self._job, self._deep, self._rng = job, deep, rng
        self._alive = np.zeros((0, deep), dtype=bool)  # pipelines by stages
        self._spare = 0

    @property
    def config(self) -> int:
        return self._job.at.get((len(self._alive), self._deep), SUSPENDED)

    @property
    def speed(self) -> float:
        """Pipelines wait for one another."""
        return 1.0 if self._alive.all() else 1.0 / SLOWER

    def meet(self, moment: RideMoment, *, first: bool) -> float:
        """Apply the changes of the market; the pause that they take."""
        pause_s = 0.0
        if first or moment.now > moment.was:
            self._spare += moment.now if first else moment.now - moment.was
        elif moment.now < moment.was:
            pause_s = self._lose(moment.was - moment.now)
        if self._worth_forming():
            self._form(moment.now)
            pause_s = GLOBAL_S
        return pause_s

    def _lose(self, lost: int) -> float:
        """Victims are anyone; a pipeline that loses two neighbours, or one that had a stand-in, is gone."""
        nodes = np.flatnonzero(self._alive.ravel())
        drawn = self._rng.choice(len(nodes) + self._spare, size=min(lost, len(nodes) + self._spare), replace=False)
        hit = nodes[drawn[drawn < len(nodes)]]
        self._spare -= int((drawn >= len(nodes)).sum())
        if not len(hit):
            return 0.0
        self._alive.ravel()[hit] = False
        gone = ~self._alive
        fatal = (gone & np.roll(gone, -1, axis=1)).any(axis=1)
        if fatal.any():
            self._spare += int(self._alive[fatal].sum())
            self._alive = self._alive[~fatal]
            return GLOBAL_S
        return LOCAL_S

    def _worth_forming(self) -> bool:
        holes, active = int((~self._alive).sum()), int(self._alive.sum())
        another = self._spare >= self._deep and len(self._alive) < self._most
        repair = 0 < holes <= self._spare
        return another or repair or (holes > 0 and 2 * holes > OVERLOADED * active)

    @property
    def _most(self) -> int:
        return max((wide for wide, deep in self._job.grids if deep == self._deep), default=0)

    def _form(self, instances: int) -> None:
        wide = min(instances // self._deep, self._most)
        self._alive = np.ones((wide, self._deep), dtype=bool)
        self._spare = instances - wide * self._deep
