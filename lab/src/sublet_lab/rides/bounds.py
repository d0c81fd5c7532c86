"""Bounds for every policy: the best path through a market that is known beforehand, and a job that follows it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from sublet.domain.plan import JobState, Plan, Pool, Snapshot
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.gridded import Gridded
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.planning.lookahead import INSTANT_S, Step, steps_ahead
from sublet.planning.objective import Objective
from sublet.planning.turns import fastest_shape, serve_in_turn
from sublet.solve.arrays import Floats
from sublet.solve.lookahead import Ahead, best_path
from sublet_lab.rides.record import Record


@dataclass(frozen=True, slots=True)
class Foretold:
    """A configuration from each of these instants on, known beforehand; all there are are held, or just its grid.

    If its grid does not fit, it loses copies.
    """

    at_s: tuple[float, ...]
    config_T: tuple[int, ...]
    spares: bool = True

    def decide(self, snapshot: Snapshot) -> Plan:
        """The plan that was given for now."""
        place = bisect_right(self.at_s, snapshot.now_s + INSTANT_S) - 1

        def choose(state: JobState, pool: Pool, gpus: int) -> Shape | None:
            speed = state.job.speed
            if not isinstance(speed, Gridded):
                return fastest_shape(state, pool, gpus)
            told = self.config_T[place] if place >= 0 else SUSPENDED
            grid = speed.grid(speed.profile.cut(told, gpus))
            if grid is None:
                return None
            return Shape(pool.name, gpus if self.spares else grid.gpus, grid=grid)

        return serve_in_turn(snapshot, choose).plan(self.at_s[place + 1] if place + 1 < len(self.at_s) else None)


def constant(config: int) -> Foretold:
    """One grid, and nothing held beyond it."""
    return Foretold((0.0,), (config,), spares=False)


def most_kept(job: SpotJob, record: Record, usd_per_sample: float, usd_per_h: float) -> Floats:
    """By constant grids: worth of the samples less the rent of the grids, were changes and boots free."""
    kept_C = np.zeros(len(job.grids))
    for moment in record.moments():
        cut_C = [job.cut(config, moment.now) for config in range(len(job.grids))]
        rent_C = job.use_C[cut_C] * usd_per_h / SECONDS_PER_H
        kept_C += (usd_per_sample * job.rate_C[cut_C] - rent_C) * moment.lasts_s
    return kept_C


def oracle(job: SpotJob, record: Record) -> Foretold:
    """The best path for a market known in advance, by the same program that looks ahead."""
    moments = record.moments()
    path = best_path(steps_of(Objective(job), record), SUSPENDED).config_H
    at_s: list[float] = []
    config_T: list[int] = []
    for moment, config in zip(moments, path, strict=True):
        if not config_T or config_T[-1] != config:
            at_s.append(record.begins_s + moment.at_s)
            config_T.append(config)
    return Foretold(tuple(at_s), tuple(config_T))


def path_value(objective: Objective, record: Record) -> float:
    """The worth of the best path."""
    return best_path(steps_of(objective, record), SUSPENDED).value


def steps_of(objective: Objective, record: Record) -> Ahead:
    """All of a record, for the solver."""
    moments = record.moments()
    return steps_ahead(objective, moments[0].was, [Step(moment.now, moment.lasts_s) for moment in moments])
