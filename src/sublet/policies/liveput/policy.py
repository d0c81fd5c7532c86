"""Look ahead before a job changes its grid: what a market takes and gives soon decides whether a change pays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from sublet.domain.plan import JobState, Phase, Plan, Pool, Snapshot
from sublet.domain.quantity import at_least
from sublet.domain.shape import Shape
from sublet.market.forecast import Persistence
from sublet.market.losses import LossesAhead
from sublet.perf.gridded import Gridded, config_of
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.lookahead import AnnouncedLoss, Contender, capacity_by_tick, capacity_changes, next_calm_s
from sublet.planning.objective import ANY, Objective, Own, SpotPrices
from sublet.planning.turns import fastest_shape, serve_in_turn
from sublet.solve.arrays import Floats


@dataclass(frozen=True, slots=True)
class Liveput:
    """First come, first served; a job that knows grids changes its own only where the look ahead says that it pays."""

    # What a sample is worth: GPUs that add less than their rent are not held. None: samples are all that counts.
    usd_per_sample: float | None = None
    losses: LossesAhead | None = None  # that may come; None: what is there stays

    def __post_init__(self) -> None:
        if self.usd_per_sample is not None:
            at_least("usd_per_sample", self.usd_per_sample, 0.0)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Jobs without grids get the fastest shape that fits."""
        again_s: list[float] = []
        coming: dict[str, int] = {}

        def choose(state: JobState, pool: Pool, gpus: int) -> Shape | None:
            speed = state.job.speed
            if not isinstance(speed, Gridded):
                return fastest_shape(state, pool, gpus)
            changes = capacity_changes(pool, snapshot, gpus, state.job.max_gpus)
            objective = objective_of(speed.profile, self._money(pool, snapshot))
            ready = booted(pool, snapshot)
            found, next_s = look(objective, state, changes, gpus, ready, snapshot.now_s, self.losses)
            again_s.append(next_s)
            config, hold = objective.split(found)
            grid = speed.grid(config)
            if grid is None:
                return None
            if hold is None and objective.money is not None:  # a grid does not wait for its spares to boot
                coming[pool.name] = coming.get(pool.name, 0) + gpus - (hold := max(grid.gpus, min(gpus, ready)))
            return Shape(pool.name, gpus if hold is None else hold, grid=grid)

        draft = serve_in_turn(snapshot, choose)
        for name, gpus in coming.items():
            draft.hold_spares(name, gpus)
        return draft.plan(min(again_s, default=None))

    def _money(self, pool: Pool, snapshot: Snapshot) -> SpotPrices | None:
        if self.usd_per_sample is None:
            return None
        states = [snapshot.offers[offer_id] for offer_id in pool.offer_ids]
        usd_per_h = min(state.price.usd_per_h for state in states) / pool.gpus_per_node
        boot_s = max(state.offer.boot_s for state in states)
        return SpotPrices(usd_per_sample=self.usd_per_sample, usd_per_h=usd_per_h, boot_s=boot_s)


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
