"""Bamboo's way: pipelines of a fixed depth in which every instance can stand in for its neighbour.

A lost stage is taken over by the one before it, at once, and its pipeline runs slower; two neighbours lost at a time
are fatal. The constants are those of its simulator. Redundant work while nothing is lost is not charged, and speeds are
those of the table without it: this is kind to Bamboo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.quantity import at_least, whole
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.spot.policies import Observation, SpotAgent, SpotDecision

__all__ = ["Bamboo"]

GLOBAL_S = 30.0  # everyone meets anew
LOCAL_S = 12.5  # a neighbour takes over: 5 to 20 s
SLOWER = 1.5  # a pipeline with a stand-in
OVERLOADED = 0.05  # twice the share of stand-ins above which pipelines are formed anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Bamboo:
    """`deep` stages for ever; victims are drawn with `seed`."""

    deep: int
    seed: int = 0
    blind: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        whole("deep", self.deep, 1)
        at_least("seed", self.seed, 0)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - it needs no past
        """An agent that remembers who stands in for whom."""
        return _BambooAgent(job, self.deep, np.random.default_rng(self.seed))


class _BambooAgent:
    def __init__(self, job: SpotJob, deep: int, rng: np.random.Generator) -> None:
        self._job, self._deep, self._rng = job, deep, rng
        self._alive = np.zeros((0, deep), dtype=bool)  # pipelines by stages
        self._spare = 0

    def decide(self, seen: Observation) -> SpotDecision:
        pause_s = 0.0
        if seen.first or seen.now > seen.was:
            self._spare += seen.now if seen.first else seen.now - seen.was
        elif seen.now < seen.was:
            pause_s = self._lose(seen.was - seen.now)
        if self._worth_forming():
            self._form(seen.now)
            pause_s = GLOBAL_S
        config = self._job.at.get((len(self._alive), self._deep), SUSPENDED)
        speed = 1.0 / SLOWER if not self._alive.all() else 1.0  # pipelines wait for one another
        left_s = max(pause_s, seen.left_s) if pause_s else 0.0
        return SpotDecision(config=config, pause_s=left_s, speed=speed)

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
        most = max((wide for wide, deep in self._job.grids if deep == self._deep), default=0)
        another = self._spare >= self._deep and len(self._alive) < most
        repair = 0 < holes <= self._spare
        return another or repair or (holes > 0 and 2 * holes > OVERLOADED * active)

    def _form(self, instances: int) -> None:
        most = max((wide for wide, deep in self._job.grids if deep == self._deep), default=0)
        wide = min(instances // self._deep, most)
        self._alive = np.ones((wide, self._deep), dtype=bool)
        self._spare = instances - wide * self._deep
