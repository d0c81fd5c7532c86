"""One large job on preemptible instances: the grids it can run in, how fast, and what every change of grid costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sublet.domain.quantity import at_least, positive
from sublet.errors import InvalidValue
from sublet.perf.migration import Grid, MigrationCosts, Rates, moves_from_costs
from sublet.solve.expectation import Loss, Moves, expected_moves

__all__ = ["SUSPENDED", "Floats", "Money", "SpotJob", "Stakes", "spot_job"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# C configurations; 0 is suspended: it holds nothing and its state lies in a checkpoint

SUSPENDED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class SpotJob:
    """A job by configurations. Expected pauses are computed once per (instances, lost) and kept."""

    name: str
    grids: tuple[Grid, ...]  # the first is (0, 0)
    rate_C: Floats  # samples per second
    costs: MigrationCosts
    moves: Moves
    noticed: Moves  # after a loss that was announced
    step_s: float
    kept: dict[tuple[int, int], Floats] = field(default_factory=dict, repr=False)

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

    def pauses_s(self, was: int, now: int) -> Floats:
        """Expected seconds without training from every configuration to every other as instances go from was to now."""
        key = (was, now)
        if key not in self.kept:
            table_CC = self._lossless() if now >= was else self._after(was, was - now)
            self.kept[key] = np.where(self.use_C <= now, table_CC, np.inf)
        return self.kept[key]

    def advance(
        self, held: int, left_s: float, config: int, was: int, now: int, *, boot_s: float = 0.0
    ) -> tuple[float, float, bool]:
        """One step in `config` after `held`: samples, what is left of the pause, and whether there was a change.

        `boot_s` is for instances that it needs and that were not held.
        """
        pause_s = float(self.pauses_s(was, now)[held, config]) + boot_s
        if pause_s > 0:
            left_s = pause_s + (float(self.moves.shrink_C[config]) if left_s > 0 else 0.0)
        samples = float(self.rate_C[config]) * max(0.0, self.step_s - left_s)
        return samples, max(0.0, left_s - self.step_s), pause_s > 0

    def _lossless(self) -> Floats:
        if (-1, 0) not in self.kept:
            most = int(self.use_C.max())
            self.kept[-1, 0] = expected_moves(self.moves, [Loss(instances=most, lost=0)])
        return self.kept[-1, 0]

    def _after(self, was: int, lost: int) -> Floats:
        if (-was - 2, lost) not in self.kept:
            self.kept[-was - 2, lost] = expected_moves(self.noticed, [Loss(instances=was, lost=lost)])
        return self.kept[-was - 2, lost]


def spot_job(name: str, rates: Rates, costs: MigrationCosts, *, notice_s: float = 0.0, step_s: float = 60.0) -> SpotJob:
    """A job from a table of speeds and a cost model.

    With notice of a loss, what a restart has to prepare is prepared while training goes on, as far as the notice lasts:
    it shortens restarts after a loss by `min(notice, ready_s)` and nothing else.
    """
    at_least("notice_s", notice_s, 0.0)
    positive("step_s", step_s)
    if not rates:
        raise InvalidValue("rates", rates, "at least one configuration")
    grids = ((0, 0), *sorted(rates, key=lambda grid: (grid[1], grid[0])))  # of equals the shallow ones come first
    moves = moves_from_costs(costs, grids)
    ready = {
        grow: np.array([costs.ready_s(*grid, grow=grow) if grid[0] else 0.0 for grid in grids])
        for grow in (True, False)
    }
    noticed = replace(
        moves,
        grow_C=moves.grow_C - np.minimum(notice_s, ready[True]),
        shrink_C=moves.shrink_C - np.minimum(notice_s, ready[False]),
    )
    return SpotJob(
        name=name,
        grids=grids,
        rate_C=np.array([0.0, *(rates[grid] for grid in grids[1:])]),
        costs=costs,
        moves=moves,
        noticed=noticed,
        step_s=step_s,
    )


# ---------------------------------------------------------------------- what is at stake


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What a sample is worth and an instance costs. Instances given back take `boot_s` to be had again."""

    usd_per_sample: float
    usd_per_h: float
    boot_s: float = 45.0  # what Bamboo measured for creating an instance

    def __post_init__(self) -> None:
        positive("usd_per_sample", self.usd_per_sample)
        at_least("usd_per_h", self.usd_per_h, 0.0)
        at_least("boot_s", self.boot_s, 0.0)


class Stakes:
    """What a planner compares: samples alone, or samples x value - dollars.

    With money every configuration is there twice, first holding just its grid (S = c), then holding all instances that
    are to be had (S = C + c), so that spares are kept only if they are worth their rent.
    """

    def __init__(self, job: SpotJob, money: Money | None = None) -> None:
        self.job, self.money = job, money
        times = 1 if money is None else 2
        self.rate_S = np.tile(job.rate_C, times) * (1.0 if money is None else money.usd_per_sample)
        self.again_S = np.tile(job.moves.shrink_C, times)
        self.looked: dict[tuple[float, ...], int] = {}  # markets come back to the same numbers, and so do questions
        self._kept: dict[tuple[int, int], Floats] = {}

    def pauses_s(self, was: int, now: int) -> Floats:
        """As for the job, and the boot of instances that were given back."""
        job, money = self.job, self.money
        table_CC = job.pauses_s(was, now)
        if money is None:
            return table_CC
        if (was, now) not in self._kept:
            there_C = np.maximum(job.use_C - max(0, was - now), 0) + max(0, now - was)
            boots_CC = table_CC + np.where(job.use_C > there_C[:, None], money.boot_s, 0.0)
            self._kept[was, now] = np.block([[boots_CC, boots_CC], [table_CC, table_CC]])
        return self._kept[was, now]

    def pay_HS(self, future: Sequence[int]) -> Floats | None:  # noqa: N802 - its axes
        """Rent of a step, by step and state; None without money."""
        if self.money is None:
            return None
        per_step = self.money.usd_per_h * self.job.step_s / 3600.0
        use_C = np.broadcast_to(self.job.use_C, (len(future), len(self.job.use_C)))
        all_C = np.repeat(np.array(future)[:, None], len(self.job.use_C), axis=1)
        all_C = np.where(use_C == 0, 0, all_C)  # suspended with everything held is of no use to anyone
        return np.hstack([use_C, all_C]) * per_step

    def split(self, state: int) -> tuple[int, int | None]:
        """Configuration, and how many instances are held; None for all."""
        config = state % len(self.job.grids)
        every = self.money is None or (state > config and config != SUSPENDED)
        return config, None if every else int(self.job.use_C[config])

    def advance(self, state: int, left_s: float, to: int, was: int, now: int) -> tuple[float, float]:
        """One step: its worth, and what is left of the pause."""
        pause_s = float(self.pauses_s(was, now)[state, to])
        if pause_s > 0:
            left_s = pause_s + (float(self.again_S[to]) if left_s > 0 else 0.0)
        worth = float(self.rate_S[to]) * max(0.0, self.job.step_s - left_s)
        pay = self.pay_HS([now])
        return worth - (0.0 if pay is None else float(pay[0, to])), max(0.0, left_s - self.job.step_s)
