"""Worker counts of the published budget-optimal system, computed the way its public code does.

Per application and epoch: a convex program over the hull of the speedup, counts rounded to the nearest vertex, the
budget shrunk by a hundredth until the rounded plan fits with its rescales, and random gluing of epochs into blocks.
The steps are described in the project's notes on `boa` (docs/background); what it cannot do is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.demand import Demand
from sublet.domain.plan import JobState
from sublet.planning.menu import Menu, menu_of
from sublet.planning.terms import Sites
from sublet.planning.value_of_time import TimePrice
from sublet.solve.arrays import Floats, Ints
from sublet.solve.curves import Curves
from sublet.solve.price import Frontier, frontier

__all__ = ["boa_widths", "exact_width", "least_widths"]

DRAWS = 30  # of block lengths
SHRINK = 0.99
MOST_SHRINKING = 500  # to 0.7 % of the budget: nothing that could fit is missed
LONGEST_BLOCK = 10  # epochs / this, at most
HALF = 0.5

# I applications; E epochs, B blocks of one; C widths; X blocks of all applications in one row; V hull vertices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _App:
    """One application: how long an epoch takes at each count, and how many jobs arrive per hour."""

    menu: Menu
    hours_EC: Floats
    per_h: float

    def spend_and_time(self, column_E: Ints, rent: float) -> tuple[float, float]:
        """USD and hours of one job: each change is a rescale at the new worker count, and so is the start."""
        epoch_E = np.arange(len(column_E))
        hours_E = self.hours_EC[epoch_E, column_E].copy()
        changes_E = np.concatenate(([True], column_E[1:] != column_E[:-1]))
        hours_E += np.where(changes_E, self.menu.restart_C[column_E], 0.0)
        return float(rent * (hours_E @ self.menu.gpus_C[column_E])), float(hours_E.sum())


@lru_cache(maxsize=16)
def boa_widths(
    expected: Demand, sites: Sites, rent: float, usd_per_h: float, seed: int
) -> Mapping[Hashable, Sequence[int]] | None:
    """GPUs by epoch for every kind of job in the forecast, on the one pool in `sites`; None if no draw gave a plan."""
    rng = np.random.default_rng(seed)
    apps = {}
    for kind, arrivals in expected.kinds.items():
        menu = menu_of(arrivals.like, sites)
        hours_EC = menu.hours(arrivals.work)
        if arrivals.jobs and np.isfinite(hours_EC).any(axis=1).all():
            apps[kind] = _App(menu=menu, hours_EC=hours_EC, per_h=arrivals.jobs / expected.hours)
    best: tuple[float, list[Ints]] | None = None
    if not apps:
        return None
    for _ in range(DRAWS if any(len(app.hours_EC) > 1 for app in apps.values()) else 1):
        lengths = [int(rng.integers(1, math.ceil(len(app.hours_EC) / LONGEST_BLOCK) + 1)) for app in apps.values()]
        found = _glued(list(apps.values()), lengths, rent, usd_per_h)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    return {
        kind: [int(gpus) for gpus in app.menu.gpus_C[column_E]]
        for (kind, app), column_E in zip(apps.items(), best[1], strict=True)
    }


def least_widths(expected: Demand, sites: Sites) -> Mapping[Hashable, Sequence[int]]:
    """The least that each kind runs on, in every epoch: what is left where no plan is within the budget."""
    menus = {kind: menu_of(arrivals.like, sites) for kind, arrivals in expected.kinds.items()}
    return {kind: [int(menu.gpus_C.min())] * len(menu.rate_EC) for kind, menu in menus.items() if menu.shapes}


def exact_width(state: JobState, menu: Menu, price: TimePrice, rent: float, now_s: float) -> int:
    """The width of the phase that the job is in, at this price of time and without regard to rescales."""
    rate_C = menu.rate_EC[menu.phase(state.done_at(now_s))]
    with np.errstate(divide="ignore"):
        cost_C = (price.of(state) + rent * menu.gpus_C) / rate_C
    return int(menu.gpus_C[cost_C.argmin()])


def _glued(
    apps: Sequence[_App], lengths: Sequence[int], rent: float, usd_per_h: float
) -> tuple[float, list[Ints]] | None:
    """The mean time and the counts by epoch, with epochs glued into blocks of these lengths; None if nothing fits."""
    block_of = [np.arange(len(app.hours_EC)) // length for app, length in zip(apps, lengths, strict=True)]
    blocks = [
        np.add.reduceat(app.hours_EC, np.flatnonzero(np.diff(block_E, prepend=-1)), axis=0)
        for app, block_E in zip(apps, block_of, strict=True)
    ]
    most = max(app.hours_EC.shape[1] for app in apps)
    hours_XC = np.concatenate([_padded(block_BC, most) for block_BC in blocks])
    gpus_XC = np.concatenate(
        [np.tile(_padded(app.menu.gpus_C[None], most, 1.0), (len(b), 1)) for app, b in zip(apps, blocks, strict=True)]
    )
    if not np.isfinite(hours_XC).any(axis=1).all():
        return None  # no width gets through all epochs of a block
    rate_X = np.repeat([app.per_h for app in apps], [len(block_BC) for block_BC in blocks])
    line = frontier(Curves.from_tables(hours_XC, rent * gpus_XC * hours_XC), rate_X)
    first_I = np.cumsum([0, *(len(block_BC) for block_BC in blocks)])
    money = usd_per_h
    for _ in range(MOST_SHRINKING):
        if money < line.least:
            return None
        column_X = _rounded(line, money, hours_XC)
        plans = [column_X[first_I[i] + block_of[i]] for i in range(len(apps))]
        figures = [app.spend_and_time(column_E, rent) for app, column_E in zip(apps, plans, strict=True)]
        if sum(app.per_h * usd for app, (usd, _) in zip(apps, figures, strict=True)) <= usd_per_h:
            return sum(app.per_h * hours for app, (_, hours) in zip(apps, figures, strict=True)), plans
        money *= SHRINK
    return None


def _rounded(line: Frontier, money: float, hours_XC: Floats) -> Ints:
    """The fractional optimum for this money, each count rounded to the nearer of the two vertices around it.

    Between two vertices speed is linear in the count, so that the place of the mixed speed is that of the count.
    """
    found = line.at(money)
    row_X = np.arange(len(hours_XC))
    poor_X, rich_X = found.poorer, found.richer
    slow_X, fast_X = hours_XC[row_X, poor_X], hours_XC[row_X, rich_X]
    with np.errstate(divide="ignore", invalid="ignore"):  # a phase beyond the end of the job takes no time
        speed_X = 1 / ((1 - found.share) * slow_X + found.share * fast_X)
        place_X = (speed_X - 1 / slow_X) / (1 / fast_X - 1 / slow_X)
    return np.where(place_X >= HALF, rich_X, poor_X)


def _padded(table: Floats, columns: int, value: float = np.inf) -> Floats:
    return np.pad(table, ((0, 0), (0, columns - table.shape[1])), constant_values=value)
