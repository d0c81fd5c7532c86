"""Look ahead before a job changes its grid: what a market takes and gives soon decides whether a change pays."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import JobState, Plan, Pool, Snapshot
from sublet.domain.quantity import at_least
from sublet.domain.shape import Shape
from sublet.market.losses import LossesAhead
from sublet.perf.gridded import Gridded
from sublet.planning.capacity_seen import capacity_changes
from sublet.planning.objective import SpotPrices
from sublet.planning.turns import fastest_shape, serve_in_turn
from sublet.policies.liveput.look import booted, look, objective_of

__all__ = ["Liveput"]


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
