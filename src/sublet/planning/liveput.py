"""How one job rides a spot market: the published policies and their bounds, as values that a driver runs over a trace.

| name | decides | pays for a change |
|---|---|---|
| ideal | the fastest grid at every tick | nothing |
| scripted | what it was told, for example the oracle's path | live migration |
| checkpoint-restart | the fastest grid at every change (stands for Varuna) | a restart through storage |
| greedy-live | the fastest grid at every change | live migration |
| parcae | a look ahead on a forecast, before the tick's capacity is known | live migration |
| bamboo | pipelines of a fixed depth with a redundant stage (liveput_bamboo.py) | its own constants |
| liveput | ours (liveput_ours.py) | live migration |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np

from sublet.domain.quantity import whole
from sublet.market.forecast import Forecaster, ParcaeForecast
from sublet.planning.liveput_job import SUSPENDED, Floats, SpotJob, Stakes
from sublet.solve.lookahead import Ahead, best_path

__all__ = [
    "CheckpointRestart",
    "Choice",
    "GreedyLive",
    "Ideal",
    "Parcae",
    "Pilot",
    "Scripted",
    "Seen",
    "SpotPolicy",
    "look",
    "oracle",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a pilot knows. `history` has the instances of every tick so far; a blind one does not see the present."""

    history: Floats
    held: int  # configuration
    left_s: float  # of its pause
    first: bool  # of the run

    @property
    def now(self) -> int:
        """Instances at the last tick seen."""
        return int(self.history[-1]) if len(self.history) else 0

    @property
    def was(self) -> int:
        """Instances a tick before."""
        return int(self.history[-2]) if len(self.history) > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A configuration for this tick. What is not said is as usual: live migration, full speed, all instances held."""

    config: int
    pause_s: float | None = None
    speed: float = 1.0
    hold: int | None = None


class Pilot(Protocol):
    """One ride; it may keep notes."""

    def decide(self, seen: Seen) -> Choice:
        """What to do at this tick."""
        ...


class SpotPolicy(Protocol):
    """A value that makes pilots. `blind`: the tick's capacity is revealed after the decision."""

    @property
    def blind(self) -> bool:
        """Whether it decides before it sees."""
        ...

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:
        """For one ride; `before` are the instances of earlier ticks."""
        ...


# ---------------------------------------------------------------------- bounds


@dataclass(frozen=True, slots=True)
class Ideal:
    """The fastest grid at every tick, and changes are free: no policy can do better."""

    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:  # noqa: ARG002 - it needs no past
        """A pilot without memory."""
        return _Fastest(job, free=True)


@dataclass(frozen=True, slots=True)
class Scripted:
    """A configuration for every tick, known beforehand."""

    config_T: tuple[int, ...]
    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:  # noqa: ARG002 - it needs no past
        """Counts ticks."""
        return _Script(iter(self.config_T))


def oracle(job: SpotJob, capacity: Sequence[int], before: Sequence[int] = ()) -> Scripted:
    """The best path for a capacity known in advance, by the same program that looks ahead."""
    points = [before[-1] if len(before) else 0, *capacity]
    return Scripted(_path(Stakes(job), points, SUSPENDED, 0.0))


class _Script:
    def __init__(self, configs: Iterator[int]) -> None:
        self._configs = configs

    def decide(self, seen: Seen) -> Choice:  # noqa: ARG002 - it was told
        return Choice(config=next(self._configs))


# ---------------------------------------------------------------------- published


@dataclass(frozen=True, slots=True)
class GreedyLive:
    """The fastest grid that fits, at every change, by live migration."""

    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:  # noqa: ARG002 - it needs no past
        """A pilot without memory."""
        return _Fastest(job, free=False)


@dataclass(frozen=True, slots=True)
class _Fastest:
    job: SpotJob
    free: bool

    def decide(self, seen: Seen) -> Choice:
        return Choice(config=self.job.fastest(seen.now), pause_s=0.0 if self.free else None)


@dataclass(frozen=True, slots=True)
class CheckpointRestart:
    """The fastest grid at every change of capacity, through a checkpoint in storage, even if it is the same grid."""

    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:  # noqa: ARG002 - it needs no past
        """A pilot without memory."""
        return _Checkpointed(job)


@dataclass(frozen=True, slots=True)
class _Checkpointed:
    job: SpotJob

    def decide(self, seen: Seen) -> Choice:
        config = self.job.fastest(seen.now)
        if config == SUSPENDED:
            return Choice(config=config, pause_s=0.0)
        if not seen.first and seen.now == seen.was:
            return Choice(config=config, pause_s=0.0)
        grid, grow = self.job.grids[config], seen.first or seen.now > seen.was
        pause_s = self.job.costs.checkpoint_s(*grid, grow=grow, saved=not seen.first)
        again_s = self.job.costs.restart_s(*grid, grow=grow) if seen.left_s > 0 else 0.0
        return Choice(config=config, pause_s=pause_s + again_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcae:
    """Every tick: forecast, look ahead, take the first step; all before the tick's capacity is known.

    A choice that does not fit loses pipelines until it does. With `Foreknown` it is what was published as "truth".
    """

    steps: int = 12
    forecaster: Forecaster = field(default_factory=ParcaeForecast)
    blind: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        whole("steps", self.steps, 1)

    def start(self, job: SpotJob, before: Sequence[int]) -> Pilot:  # noqa: ARG002 - the history has it
        """A pilot without memory."""
        return _Ahead(Stakes(job), self.forecaster, self.steps)


@dataclass(frozen=True, slots=True)
class _Ahead:
    stakes: Stakes
    forecaster: Forecaster
    steps: int

    def decide(self, seen: Seen) -> Choice:
        future = np.rint(self.forecaster.forecast(seen.history, self.steps)).astype(int)
        # Parcae has no suspended state: what is forecast below the least that runs is read as the least.
        future = np.maximum(future, self.stakes.job.least)
        return Choice(config=_path(self.stakes, [seen.now, *future.tolist()], seen.held, seen.left_s)[0])


# ---------------------------------------------------------------------- looking ahead


def look(stakes: Stakes, was: int, future: Sequence[int], state: int, left_s: float) -> int:
    """The state to go to now, if instances are as in `future`, of which the first is now."""
    key = (was, *future, state, left_s)
    if key not in stakes.looked:
        stakes.looked[key] = _path(stakes, [was, *future], state, left_s)[0]
    return stakes.looked[key]


def _path(stakes: Stakes, points: Sequence[int], state: int, left_s: float) -> tuple[int, ...]:
    ahead = Ahead(
        rate_C=stakes.rate_S,
        pause_s=[stakes.pauses_s(was, now) for was, now in pairwise(points)],
        step_s=stakes.job.step_s,
        again_C=stakes.again_S,
        pay_HC=stakes.pay_HS(points[1:]),
    )
    return best_path(ahead, state, left_s=left_s).config_H
