"""A job that knows grids, as the kernel and its worlds see it: its speed in a shape, its pauses by kind of change."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sublet.domain.job import Change
from sublet.domain.shape import Grid, Shape, Spread
from sublet.perf.grids import SUSPENDED, SpotJob
from sublet.perf.speedup import ConstantRate


@dataclass(frozen=True, eq=False)
class Gridded(ConstantRate):
    """Samples per second by grid; where none is said, in the fastest that fits."""

    profile: SpotJob
    config: int | None = None
    _bound: dict[int, Gridded] = field(default_factory=dict, repr=False)

    def bound_to(self, shape: Shape) -> Gridded:
        """In the grid of this shape; each is made once."""
        if shape.grid is None:
            return self
        config = config_of(self.profile, shape)
        if config not in self._bound:
            self._bound[config] = Gridded(self.profile, config)
        return self._bound[config]

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        """0 where the grid was not measured, or does not fit."""
        del gpu, done
        gpus = sum(spread)
        config = self.profile.fastest(gpus) if self.config is None else self.config
        return float(self.profile.rate_C[config]) if self.profile.use_C[config] <= gpus else 0.0

    def ways(self, gpus: int) -> list[tuple[Grid | None, None]]:
        """The grids that fit; what is over is spare."""
        fits = np.flatnonzero((self.profile.use_C <= gpus) & (self.profile.rate_C > 0))
        return [(self.grid(config), None) for config in fits.tolist()]

    def grid(self, config: int) -> Grid | None:
        """Grid of a configuration; None for the suspended one."""
        return None if config == SUSPENDED else Grid(*self.profile.grids[config])


@dataclass(frozen=True, eq=False)
class LivePauses:
    """State moves from staying workers to new ones: the expected cost of a change over the possible losses."""

    profile: SpotJob
    lead_s: float = field(default=0.0, init=False)  # workers that stay have the state, or restore the rest

    def pause_s(self, change: Change) -> float:
        """A change, and regrouping once more where it cuts another short; without a change, the rest of that one."""
        profile, was = self.profile, change.was
        target = config_of(profile, change.now)
        source = SUSPENDED if was is None else config_of(profile, was)
        if was is None or not change.lost:
            pause_C = profile.lossless_s()[source]
        elif source != SUSPENDED and (pinned := _pinned(was, change.lost)):
            pause_C = profile.after_loss_beside_s(source, was.gpus, change.lost, pinned, change.ready_s)
        else:
            pause_C = profile.after_loss_s(was.gpus, change.lost, change.ready_s)[source]
        pause_s = float(pause_C[target])
        if pause_s == 0.0 and was is not None and _steady_in_grid(was) != _steady_in_grid(change.now):
            pause_s = profile.replaced_s(target)  # the same grid, in part on other instances
        if pause_s == 0.0:
            return change.left_s
        return pause_s + (float(profile.moves.shrink_C[target]) if change.left_s > 0 else 0.0)


@dataclass(frozen=True, eq=False)
class StoragePauses:
    """Every change goes through a checkpoint in storage, even if the grid stays."""

    profile: SpotJob

    @cached_property
    def lead_s(self) -> float:
        """The longest save."""
        costs = self.profile.costs
        writes = (
            costs.checkpoint_s(*grid, grow=False, saved=True) - costs.checkpoint_s(*grid, grow=False, saved=False)
            for grid in self.profile.grids[1:]
        )
        return max(writes)

    def pause_s(self, change: Change) -> float:
        """Save, stop, start and load; stopping once more where it cuts another change short."""
        costs, now = self.profile.costs, change.now
        grid = self.profile.grids[config_of(self.profile, now)]
        grow = change.was is None or now.gpus > change.was.gpus
        pause_s = costs.checkpoint_s(*grid, grow=grow, saved=change.was is not None)
        return pause_s + (costs.restart_s(*grid, grow=grow) if change.left_s > 0 else 0.0)


def _pinned(was: Shape | None, lost: int) -> int:
    """Whole copies on demand: a lost worker is among the others, unless there are not so many of them."""
    if was is None or was.grid is None:
        return 0
    copies = min(was.steady // was.grid.parts, was.grid.copies)
    return copies if lost <= was.gpus - copies * was.grid.parts else 0


def _steady_in_grid(shape: Shape) -> int:
    """GPUs on demand that are no spares."""
    return shape.steady if shape.grid is None else min(shape.steady, shape.grid.copies * shape.grid.parts)


def config_of(profile: SpotJob, shape: Shape) -> int:
    """The configuration that a shape is; where it does not say, the fastest that fits."""
    if shape.grid is None:
        return profile.fastest(shape.gpus)
    return profile.at.get((shape.grid.copies, shape.grid.parts), SUSPENDED)
