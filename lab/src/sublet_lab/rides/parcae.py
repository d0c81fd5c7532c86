"""Parcae's way, to compare with: at every tick a look ahead on a forecast, made before the tick's capacity is seen.

A choice that does not fit what has come loses copies until it does. Between two ticks nothing is decided anew. Parcae
knows no suspended state: what is forecast below the least that a job runs on is read as the least.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sublet.domain.plan import JobState, Phase, Plan, Pool, Snapshot
from sublet.domain.quantity import whole
from sublet.domain.shape import Shape
from sublet.market.forecast import Forecaster
from sublet.perf.gridded import Gridded, config_of
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.draft import next_tick_s
from sublet.planning.lookahead import Step, capacity_by_tick, capacity_changes, look_ahead
from sublet.planning.objective import Objective
from sublet.planning.turns import fastest_shape, serve_in_turn
from sublet.solve.arrays import Floats
from sublet_lab.forecasting.parcae import ParcaeForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcae:
    """As published: every minute 12 minutes ahead on its forecast, before it sees the minute's capacity."""

    steps: int = 12
    forecaster: Forecaster = field(default_factory=ParcaeForecast)

    def __post_init__(self) -> None:
        whole("steps", self.steps, 1)

    def decide(self, snapshot: Snapshot) -> Plan:
        """First come, first served; jobs without grids get the fastest shape that fits."""
        again_s: list[float] = []

        def choose(state: JobState, pool: Pool, gpus: int) -> Shape | None:
            speed = state.job.speed
            if not isinstance(speed, Gridded):
                return fastest_shape(state, pool, gpus)
            profile, now_s = speed.profile, snapshot.now_s
            again_s.append(next_tick_s(now_s, profile.step_s))
            runs = state.runs_in if state.phase is not Phase.WAITING else None
            config = SUSPENDED if runs is None else config_of(profile, runs)
            if runs is None or now_s % profile.step_s == 0.0:
                changes = capacity_changes(pool, snapshot, gpus, state.job.max_gpus)
                past = capacity_by_tick(changes, gpus, now_s, profile.step_s)
                config = self._look(profile, past[:-1] if len(past) > 1 else past, config, state.pause_left_s(now_s))
            grid = speed.grid(profile.cut(config, gpus))
            return None if grid is None else Shape(pool.name, gpus, grid=grid)

        return serve_in_turn(snapshot, choose).plan(min(again_s, default=None))

    def _look(self, profile: SpotJob, past: Floats, held: int, left_s: float) -> int:
        ahead = np.maximum(np.rint(self.forecaster.forecast(past, self.steps)), profile.least).astype(int)
        if not len(ahead):  # the record ends, and with it foresight
            return held
        steps = [Step(now, profile.step_s) for now in ahead.tolist()]
        return look_ahead(_objective(profile), int(past[-1]), steps, held, left_s).now


@lru_cache(maxsize=64)
def _objective(profile: SpotJob) -> Objective:
    """Tables that follow from a profile alone."""
    return Objective(profile)
