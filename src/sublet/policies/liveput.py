"""Look ahead before a job changes its grid: what a market takes and gives soon decides whether a change pays.

It looks when capacity has changed or is about to, goes on with a plan at the next tick, and looks again once it has
been calm for 10, 20, 40 ... ticks, which tells something too. What it needs to know of the past is how fast capacity
changes, and that is in the snapshot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sublet.domain.plan import JobState, Phase, Plan, Pool, Snapshot
from sublet.domain.shape import Shape
from sublet.market.forecast.simple import Persistence
from sublet.perf.gridded import Gridded, config_of
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.capacity_seen import capacity_by_tick, capacity_changes
from sublet.planning.lookahead import AnnouncedLoss, Contender, next_calm_s
from sublet.planning.objective import ANY, Objective
from sublet.planning.turns import fastest_shape, serve_in_turn
from sublet.solve.arrays import Floats

__all__ = ["Liveput"]

LOOK = Contender(Persistence(), 10, gaps=2.5)  # over a few changes of capacity at their pace of late


class _Outlook(NamedTuple):
    history: Floats
    was: int
    now: int
    warned: tuple[AnnouncedLoss, ...] = ()
    ready: tuple[int, float] = (ANY, 0.0)


@dataclass(frozen=True, slots=True)
class Liveput:
    """First come, first served; a job that knows grids changes its own only where the look ahead says that it pays."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """Jobs without grids get the fastest shape that fits."""
        again_s: list[float] = []

        def choose(state: JobState, pool: Pool, gpus: int) -> Shape | None:
            speed = state.job.speed
            if not isinstance(speed, Gridded):
                return fastest_shape(state, pool, gpus)
            changes = capacity_changes(pool, snapshot, gpus, state.job.max_gpus)
            config, next_s = _look(speed.profile, state, changes, gpus, snapshot.now_s)
            again_s.append(next_s)
            grid = speed.grid(config)
            return None if grid is None else Shape(pool.name, gpus, grid=grid)

        draft = serve_in_turn(snapshot, choose)
        return draft.plan(min(again_s, default=None))


def _look(
    profile: SpotJob, state: JobState, changes: list[tuple[float, int]], gpus: int, now_s: float
) -> tuple[int, float]:
    """The configuration to be in now, and when to look again."""
    runs = state.runs_in if state.phase is not Phase.WAITING else None
    held = SUSPENDED if runs is None else config_of(profile, runs)
    was = next((many for at_s, many in reversed(changes) if at_s < now_s), 0) if runs is None else runs.gpus
    outlook = _Outlook(capacity_by_tick(changes, gpus, now_s, profile.step_s), was, gpus)
    plan = LOOK.look(_objective(profile), outlook, held, state.pause_left_s(now_s))
    if plan.soon != plan.now:
        return plan.now, (math.floor(now_s / profile.step_s) + 1) * profile.step_s
    return plan.now, next_calm_s(changes[-1][0], now_s, profile.step_s)


@lru_cache(maxsize=64)
def _objective(profile: SpotJob) -> Objective:
    """Tables that follow from a profile alone."""
    return Objective(profile)
