"""One look ahead: the grid to be in now, and when to look again.

It looks when capacity has changed or is about to, goes on with a plan at the next tick, and looks again once it has
been calm for 10, 20, 40 ... ticks, which tells something too. What it needs to know of the past is how fast capacity
changes, and that is in the snapshot.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from sublet.domain.plan import JobState, Phase, Pool, Snapshot
from sublet.market.forecast.simple import Persistence
from sublet.market.losses import LossesAhead
from sublet.perf.gridded import config_of
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.capacity_seen import capacity_by_tick
from sublet.planning.lookahead import AnnouncedLoss, Contender, next_calm_s
from sublet.planning.objective import ANY, Objective, Own, SpotPrices
from sublet.solve.arrays import Floats

__all__ = ["booted", "look", "objective_of"]

LOOK = Contender(Persistence(), 10, gaps=2.5)  # over a few changes of capacity at their pace of late


class Outlook(NamedTuple):
    """Knowledge of the market, as of a tick."""

    history: Floats
    was: int
    now: int
    warned: tuple[AnnouncedLoss, ...] = ()
    ready: tuple[int, float] = (ANY, 0.0)


def look(
    objective: Objective,
    state: JobState,
    changes: list[tuple[float, int]],
    gpus: int,
    ready: int,
    now_s: float,
    losses: LossesAhead | None = None,
) -> tuple[int, float]:
    """The state to be in now, and when to look again."""
    profile = objective.job
    runs = state.runs_in if state.phase is not Phase.WAITING else None
    held = SUSPENDED if runs is None else config_of(profile, runs)
    was, own = next((many for at_s, many in reversed(changes) if at_s < now_s), 0), None
    if runs is not None and objective.money is None:
        was = runs.gpus
    elif runs is not None:
        held += len(profile.grids) * (runs.spares > 0)
        lost = runs.gpus - state.gpus if state.phase is Phase.BROKEN else 0
        own = Own(runs.gpus, lost, ready + max(0, gpus - was))  # what has come runs already
    outlook = Outlook(capacity_by_tick(changes, gpus, now_s, profile.step_s), was, gpus)
    plan = replace(LOOK, losses=losses).look(objective, outlook, held, state.pause_left_s(now_s), own=own)
    if plan.soon != plan.now:
        return plan.now, (math.floor(now_s / profile.step_s) + 1) * profile.step_s
    return plan.now, next_calm_s(changes[-1][0], now_s, profile.step_s)


def booted(pool: Pool, snapshot: Snapshot) -> int:
    """GPUs that are held and have booted."""
    states = (snapshot.offers[offer_id] for offer_id in pool.offer_ids)
    return sum(state.held - state.coming for state in states) * pool.gpus_per_node


@lru_cache(maxsize=64)
def objective_of(profile: SpotJob, money: SpotPrices | None = None) -> Objective:
    """Tables that follow from a profile and prices alone."""
    return Objective(profile, money)
