"""How one job makes use of a spot market: the published policies and their bounds, as values for a driver to run.

| name | decides | pays for a change |
|---|---|---|
| ideal | the fastest grid at every tick | nothing |
| scripted | what it was told, for example the oracle's path | live migration |
| checkpoint-restart | the fastest grid at every change (stands for Varuna) | a restart through storage |
| greedy-live | the fastest grid at every change | live migration |
| parcae | a look ahead on a forecast, before the tick's capacity is known | live migration |
| bamboo | pipelines of a fixed depth with a redundant stage (bamboo.py) | its own constants |
| liveput | ours (liveput.py) | live migration |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sublet.domain.quantity import whole
from sublet.market.forecast.score import Forecaster, ParcaeForecast
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.lookahead import INSTANT_S, AnnouncedLoss, Step, look_ahead, steps_ahead
from sublet.planning.objective import ANY, Objective, SpotPrices
from sublet.solve.arrays import Floats
from sublet.solve.lookahead import Ahead, best_path
from sublet.spot.record import Moment, Record

__all__ = [
    "CheckpointRestart",
    "GreedyLive",
    "Ideal",
    "Observation",
    "Parcae",
    "Scripted",
    "SpotAgent",
    "SpotDecision",
    "SpotPolicy",
    "oracle",
    "path_value",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an agent knows. `history` has the instances of every tick so far, and of now; a blind one's ends before now.

    `ready` is the configuration that has been prepared, for so many seconds.
    """

    history: Floats
    was: int  # instances just before; of a blind one's history, a tick before its last
    held: int  # configuration
    left_s: float  # of its pause
    first: bool  # of the run
    at_s: float = 0.0  # since the start
    on_tick: bool = True
    warned: tuple[AnnouncedLoss, ...] = ()
    ready: tuple[int, float] = (ANY, 0.0)
    samples: float = 0.0  # so far

    @property
    def now(self) -> int:
        """Instances when last seen."""
        return int(self.history[-1]) if len(self.history) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotDecision:
    """A configuration from now on. What is not said is as usual: live migration, full speed, all instances held.

    `prepare` is the configuration to make ready for the next loss that was announced. `on_demand` is how many instances
    to rent on demand; None for as many as the grid lacks, where the driver lets them be rented.
    """

    config: int
    pause_s: float | None = None
    speed: float = 1.0
    hold: int | None = None
    prepare: int = ANY
    on_demand: int | None = None


class SpotAgent(Protocol):
    """One run; it may keep notes."""

    def decide(self, seen: Observation) -> SpotDecision:
        """What to do at this tick."""
        ...


class SpotPolicy(Protocol):
    """A value that makes pilots. `blind`: it decides at ticks alone, before the tick's capacity is revealed."""

    @property
    def blind(self) -> bool:
        """Whether it decides before it sees."""
        ...

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:
        """For one run; `before` are the instances of earlier ticks."""
        ...


# ---------------------------------------------------------------------- bounds


@dataclass(frozen=True, slots=True)
class Ideal:
    """The fastest grid at every tick, and changes are free: no policy can do better."""

    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - it needs no past
        """An agent without memory."""
        return _GreedyAgent(job, free=True)


@dataclass(frozen=True, slots=True)
class Scripted:
    """A configuration for every tick, or from each of the instants `at_s` on, known beforehand.

    It holds all instances there are, or so many.
    """

    config_T: tuple[int, ...]
    at_s: tuple[float, ...] = ()
    hold_T: tuple[int | None, ...] = ()
    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - it needs no past
        """Goes by the clock."""
        at_s = self.at_s or tuple(tick * job.step_s for tick in range(len(self.config_T)))
        return _ScriptedAgent(self.config_T, at_s, self.hold_T or (None,) * len(self.config_T))


def oracle(job: SpotJob, record: Record, *, notice_s: float = 0.0, money: SpotPrices | None = None) -> Scripted:
    """The best path for a market known in advance, by the same program that looks ahead."""
    objective, moments = Objective(job, money), record.moments(notice_s)
    path = best_path(_steps_of(objective, moments, notice_s), SUSPENDED).config_H
    config_T, hold_T = zip(*(objective.split(state) for state in path), strict=True)
    return Scripted(config_T, tuple(moment.at_s for moment in moments), hold_T)


def path_value(objective: Objective, record: Record) -> float:
    """What the best path is worth."""
    return best_path(_steps_of(objective, record.moments(), 0.0), SUSPENDED).value


def _steps_of(objective: Objective, moments: Sequence[Moment], notice_s: float) -> Ahead:
    """All of a market as steps ahead. What follows a loss has been ready since the one before, or for the notice."""
    next_steps, lost_s = [], 0.0
    for moment in moments:
        ready_s = 0.0
        if moment.now < moment.was:
            ready_s, lost_s = min(notice_s, moment.at_s - lost_s), moment.at_s
        next_steps.append(Step(moment.now, moment.lasts_s, ready_s))
    return steps_ahead(objective, moments[0].was, next_steps)


@dataclass(frozen=True, slots=True)
class _ScriptedAgent:
    config_T: tuple[int, ...]
    at_s: tuple[float, ...]
    hold_T: tuple[int | None, ...]

    def decide(self, seen: Observation) -> SpotDecision:
        place = self._place(seen.at_s)
        prepare = self.config_T[self._place(seen.at_s + seen.warned[0].in_s)] if seen.warned else ANY
        return SpotDecision(config=self.config_T[place], hold=self.hold_T[place], prepare=prepare)

    def _place(self, at_s: float) -> int:
        return bisect_right(self.at_s, at_s + INSTANT_S) - 1


# ---------------------------------------------------------------------- published


@dataclass(frozen=True, slots=True)
class GreedyLive:
    """The fastest grid that fits, at every change, by live migration."""

    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - it needs no past
        """An agent without memory."""
        return _GreedyAgent(job, free=False)


@dataclass(frozen=True, slots=True)
class _GreedyAgent:
    job: SpotJob
    free: bool

    def decide(self, seen: Observation) -> SpotDecision:
        return SpotDecision(config=self.job.fastest(seen.now), pause_s=0.0 if self.free else None)


@dataclass(frozen=True, slots=True)
class CheckpointRestart:
    """The fastest grid at every change of capacity, through a checkpoint in storage, even if it is the same grid."""

    blind: bool = field(default=False, init=False)

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - it needs no past
        """An agent without memory."""
        return _CheckpointAgent(job)


@dataclass(frozen=True, slots=True)
class _CheckpointAgent:
    job: SpotJob

    def decide(self, seen: Observation) -> SpotDecision:
        config = self.job.fastest(seen.now)
        if config == SUSPENDED:
            return SpotDecision(config=config, pause_s=0.0)
        if not seen.first and seen.now == seen.was:
            return SpotDecision(config=config, pause_s=0.0)
        grid, grow = self.job.grids[config], seen.first or seen.now > seen.was
        pause_s = self.job.costs.checkpoint_s(*grid, grow=grow, saved=not seen.first)
        again_s = self.job.costs.restart_s(*grid, grow=grow) if seen.left_s > 0 else 0.0
        return SpotDecision(config=config, pause_s=pause_s + again_s)


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

    def start(self, job: SpotJob, before: Sequence[int]) -> SpotAgent:  # noqa: ARG002 - the history has it
        """An agent without memory."""
        return _ParcaeAgent(Objective(job), self.forecaster, self.steps)


@dataclass(frozen=True, slots=True)
class _ParcaeAgent:
    objective: Objective
    forecaster: Forecaster
    steps: int

    def decide(self, seen: Observation) -> SpotDecision:
        future = np.rint(self.forecaster.forecast(seen.history, self.steps)).astype(int)
        # Parcae has no suspended state: what is forecast below the least that runs is read as the least.
        future = np.maximum(future, self.objective.job.least)
        next_steps = [Step(now, self.objective.job.step_s) for now in future.tolist()]
        return SpotDecision(config=look_ahead(self.objective, seen.now, next_steps, seen.held, seen.left_s).now)
