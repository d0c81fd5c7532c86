"""One large job on preemptible instances: the grids it can run in, how fast, and what every change of grid costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sublet.domain.quantity import positive
from sublet.errors import InvalidValue
from sublet.perf.migration import Grid, MigrationCosts, Rates, moves_from_costs
from sublet.solve.arrays import Floats, Ints
from sublet.solve.expectation import ExpectedMoves, Loss, expected_moves

# C configurations; 0 is suspended: it holds nothing and its state lies in a checkpoint

SUSPENDED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpotJob:
    """A job by configurations. Expected pauses are computed once per (instances, lost) and kept."""

    name: str
    grids: tuple[Grid, ...]  # the first is (0, 0)
    rate_C: Floats = field(repr=False)  # samples per second
    costs: MigrationCosts = field(repr=False)
    moves: ExpectedMoves = field(repr=False)
    ready_C: tuple[Floats, Floats] = field(repr=False)  # of a restart, what can be done before: it shrinks, or grows
    step_s: float
    kept: dict[tuple[int, int, float, bool], Floats] = field(default_factory=dict, repr=False)
    kept_beside: dict[tuple[int, int, int, int, float], Floats] = field(default_factory=dict, repr=False)

    @cached_property
    def use_C(self) -> Ints:  # noqa: N802 - its axis
        """Instances in each grid."""
        return self.moves.use_C

    @cached_property
    def at(self) -> Mapping[Grid, int]:
        """Grid to configuration."""
        return {grid: index for index, grid in enumerate(self.grids)}

    @cached_property
    def least(self) -> int:
        """Fewest instances that it runs on: below, it can only be suspended."""
        return int(self.use_C[1:].min())

    def fastest(self, instances: int) -> int:
        """The configuration with the most samples per second, of equals the narrowest; suspended where none fits."""
        fits = np.flatnonzero(self.use_C <= instances)
        return int(max(fits, key=lambda config: (self.rate_C[config], -self.moves.wide_C[config])))

    def cut(self, config: int, instances: int) -> int:
        """The same with as many pipelines as there are instances for; not for one: a single one of all of them."""
        wide, deep = self.grids[config]
        if wide * deep <= instances:
            return config
        smaller = (instances // deep, deep) if instances >= deep else (1, instances)
        return self.at.get(smaller, SUSPENDED)

    def pauses_s(self, was: int, now: int, *, ready_s: float = 0.0, beyond: bool = False) -> Floats:
        """Expected seconds without training from every configuration to every other as instances go from was to now.

        A restart after a loss that was prepared for `ready_s` is shorter by that or by what can be prepared at all.
        With `beyond`, instances from elsewhere make up for those that a grid lacks; else what lacks any is infinite.
        """
        key = (was, now, ready_s if now < was else 0.0, beyond)
        if key not in self.kept:
            table_CC = self.lossless_s() if now >= was else self.after_loss_s(was, was - now, ready_s, beyond=beyond)
            self.kept[key] = table_CC if beyond else np.where(self.use_C <= now, table_CC, np.inf)
        return self.kept[key]

    def advance(self, left_s: float, config: int, pause_s: float, lasts_s: float) -> tuple[float, float]:
        """So long in `config` after a change that pauses so long: samples, and what is left of the pause."""
        if pause_s > 0:
            left_s = pause_s + (float(self.moves.shrink_C[config]) if left_s > 0 else 0.0)
        samples = float(self.rate_C[config]) * max(0.0, lasts_s - left_s)
        return samples, max(0.0, left_s - lasts_s)

    def lossless_s(self) -> Floats:
        """Seconds without training from every configuration to every other without losses."""
        key = (-1, 0, 0.0, True)
        if key not in self.kept:
            self.kept[key] = expected_moves(self.moves, [Loss(instances=int(self.use_C.max()), lost=0)])
        return self.kept[key]

    def after_loss_s(self, was: int, lost: int, ready_s: float = 0.0, *, beyond: bool = False) -> Floats:
        """The same, expected over the losses among `was` instances; see `pauses_s`, which knows what is left."""
        key = (-was, lost, ready_s, beyond)
        if key not in self.kept:
            moves = self._prepared(ready_s)
            table_CC = expected_moves(moves, [Loss(instances=was, lost=lost)])
            for use in sorted(set(self.use_C[self.use_C > was].tolist())) if beyond else ():
                from_C = self.use_C == use
                table_CC[from_C] = expected_moves(moves, [Loss(instances=use, lost=lost)], from_C=from_C)[from_C]
            self.kept[key] = table_CC
        return self.kept[key]

    def after_loss_beside_s(self, config: int, was: int, lost: int, pinned: int, ready_s: float = 0.0) -> Floats:
        """From one configuration to every other, where the first `pinned` copies of it are out of reach."""
        key = (config, was, lost, pinned, ready_s)
        if key not in self.kept_beside:
            wide, deep = self.grids[config]
            reach = Loss(instances=was - pinned * deep, lost=lost, pipelines=wide - pinned)
            from_C = np.arange(len(self.moves)) == config
            self.kept_beside[key] = expected_moves(self._prepared(ready_s), [reach], from_C=from_C)[config]
        return self.kept_beside[key]

    def replaced_s(self, config: int) -> float:
        """Seconds to put others in the place of instances that are still there: they send their stages, and regroup."""
        moves = self.moves
        return float(moves.regroup_C[config] + moves.group_s_QG[moves.depth_C[config]].max(initial=0.0))

    def _prepared(self, ready_s: float) -> ExpectedMoves:
        """The cost of changes after a loss that was prepared for so long."""
        shrink_C, grow_C = (np.minimum(ready_s, each) for each in self.ready_C)
        return replace(self.moves, grow_C=self.moves.grow_C - grow_C, shrink_C=self.moves.shrink_C - shrink_C)


def spot_job(name: str, rates: Rates, costs: MigrationCosts, *, step_s: float = 60.0) -> SpotJob:
    """A job from a table of speeds and a cost model."""
    positive("step_s", step_s)
    if not rates:
        raise InvalidValue("rates", rates, "at least one configuration")
    grids = ((0, 0), *sorted(rates, key=lambda grid: (grid[1], grid[0])))  # of equals the shallow ones come first
    shrink_C, grow_C = (
        np.array([costs.ready_s(*grid, grow=grow) if grid[0] else 0.0 for grid in grids]) for grow in (False, True)
    )
    return SpotJob(
        name=name,
        grids=grids,
        rate_C=np.array([0.0, *(rates[grid] for grid in grids[1:])]),
        costs=costs,
        moves=moves_from_costs(costs, grids),
        ready_C=(shrink_C, grow_C),
        step_s=step_s,
    )
