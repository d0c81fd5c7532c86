"""When not everybody can have what suits them best: the congestion price, at which they want what there is.

Each GPU of a short pool carries a surcharge per hour, raised until the wishes fit. All jobs shrink along their own
curves, those that lose least by it first, and some go to another pool. It is in proportion to the work that a
job has left: a GPU that speeds up a short job is free again soon, and on a short cluster that is what it is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.planning.menu import Floats, Ints
from sublet.planning.to_go import Options

__all__ = ["WAIT", "Fit", "Wishes", "fit", "wishes"]

WAIT = -1
HALVINGS = 48  # of the range of a surcharge: from the highest that matters down to a part in 1e14
ROUNDS = 4  # pools push jobs to one another

# J jobs, C shapes (padded: infinite cost), P pools


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A shape (its column) or WAIT per job, and the surcharge of each pool in USD per GPU-hour for the median job."""

    column_J: Ints
    surcharge_P: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wishes:
    """The options of all jobs side by side."""

    row_J: Ints  # where each job stands among those that were asked: some may have nowhere to go
    cost_JC: Floats
    use_JC: Floats  # GPU-hours, weighed by the work that is left
    gpus_JC: Floats
    site_JC: Ints

    def columns(self, surcharge_P: Floats) -> Ints:
        """What each job wants at these surcharges."""
        cost_JC = self.cost_JC + np.where(np.isinf(self.cost_JC), 0.0, surcharge_P[self.site_JC] * self.use_JC)
        column_J: Ints = cost_JC.argmin(axis=1)
        return column_J

    def gpus(self, column_J: Ints, pools: int) -> Floats:
        """How many that is in each pool."""
        runs_J = np.flatnonzero(column_J != WAIT)
        at = (runs_J, column_J[runs_J])
        gpus_P = np.zeros(pools)
        np.add.at(gpus_P, self.site_JC[at], self.gpus_JC[at])
        return gpus_P


def wishes(options: Sequence[Options], work_J: Floats, most_P: Floats) -> Wishes:
    """Those that could run on no more than `most_P` GPUs of a pool; `work_J` is what each has left, over its weight.

    Precondition: at least one job, and all work above 0.
    """
    shape = (len(options), max(len(each.cost_C) for each in options))
    cost_JC, use_JC = np.full(shape, np.inf), np.zeros(shape)
    gpus_JC, site_JC = np.zeros(shape), np.zeros(shape, dtype=np.intp)
    for row, each in enumerate(options):
        count = len(each.cost_C)
        cost_JC[row, :count] = np.where(each.menu.gpus_C <= most_P[each.menu.site_C], each.cost_C, np.inf)
        runs_C = np.isfinite(each.cost_C)
        use_JC[row, :count] = np.where(runs_C, each.menu.gpus_C * each.now_C, 0.0)
        gpus_JC[row, :count] = each.menu.gpus_C
        site_JC[row, :count] = each.menu.site_C
    row_J = np.flatnonzero(np.isfinite(cost_JC).any(axis=1))
    use_JC *= (work_J / np.median(work_J))[:, None]
    return Wishes(
        row_J=row_J, cost_JC=cost_JC[row_J], use_JC=use_JC[row_J], gpus_JC=gpus_JC[row_J], site_JC=site_JC[row_J]
    )


def fit(all_wishes: Wishes, rank_J: Floats, most_P: Floats) -> Fit:
    """Shapes that fit. Where even the least is too much, those that rank behind (a larger number) wait.

    Cost: O(J C) some hundred times.
    """
    pools = len(most_P)
    surcharge_P = np.zeros(pools)
    column_J = all_wishes.columns(surcharge_P)
    for _ in range(ROUNDS):
        short = np.flatnonzero(all_wishes.gpus(column_J, pools) > most_P)
        if not len(short):
            break
        for pool in short.tolist():
            surcharge_P[pool] = _surcharge(all_wishes, surcharge_P, pool, most_P[pool])
        column_J = all_wishes.columns(surcharge_P)
    column_J = _trimmed(all_wishes, column_J, rank_J, most_P)
    return Fit(column_J=_filled(all_wishes, column_J, rank_J, most_P), surcharge_P=surcharge_P)


def _surcharge(all_wishes: Wishes, surcharge_P: Floats, pool: int, most: float) -> float:
    """The least at which no more is wanted of this pool than there is, or beyond which nothing changes."""
    trial_P = surcharge_P.copy()

    def fits(surcharge: float) -> bool:
        trial_P[pool] = surcharge
        return bool(all_wishes.gpus(all_wishes.columns(trial_P), len(trial_P))[pool] <= most)

    low = surcharge_P[pool]
    finite = np.isfinite(all_wishes.cost_JC) & (all_wishes.use_JC > 0)
    high = 2.0 * float((all_wishes.cost_JC[finite] / all_wishes.use_JC[finite]).max(initial=1.0))
    for _ in range(HALVINGS):
        if fits(high):
            break
        high *= 4.0
    else:
        return high
    floor = high * 1e-6
    low = max(low, floor)
    if fits(low):
        return float(low)
    while high > low * (1 + 1e-3):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return float(high)


def _trimmed(all_wishes: Wishes, column_J: Ints, rank_J: Floats, most_P: Floats) -> Ints:
    """In order of rank, as long as there is room; a job whose pool is full takes the best that fits, or waits."""
    if (all_wishes.gpus(column_J, len(most_P)) <= most_P).all():
        return column_J
    room_P = most_P.copy()
    column_J = column_J.copy()
    for job in np.argsort(rank_J, kind="stable").tolist():
        wanted = column_J[job]
        if all_wishes.gpus_JC[job, wanted] > room_P[all_wishes.site_JC[job, wanted]]:
            wanted = _best_within(all_wishes, job, room_P)
            column_J[job] = wanted
        if wanted != WAIT:
            room_P[all_wishes.site_JC[job, wanted]] -= all_wishes.gpus_JC[job, wanted]
    return column_J


def _filled(all_wishes: Wishes, column_J: Ints, rank_J: Floats, most_P: Floats) -> Ints:
    """What is left over goes, in order of rank, to whom it helps."""
    room_P = most_P - all_wishes.gpus(column_J, len(most_P))
    if not (room_P > 0).any() or not len(column_J):
        return column_J
    column_J = column_J.copy()
    for job in np.argsort(rank_J, kind="stable").tolist():
        now = column_J[job]
        if now != WAIT:
            room_P[all_wishes.site_JC[job, now]] += all_wishes.gpus_JC[job, now]
        best = _best_within(all_wishes, job, room_P)
        if now == WAIT or (best != WAIT and all_wishes.cost_JC[job, best] < all_wishes.cost_JC[job, now]):
            now = column_J[job] = best
        if now != WAIT:
            room_P[all_wishes.site_JC[job, now]] -= all_wishes.gpus_JC[job, now]
    return column_J


def _best_within(all_wishes: Wishes, job: int, room_P: Floats) -> int:
    fits_C: npt.NDArray[np.bool_] = all_wishes.gpus_JC[job] <= room_P[all_wishes.site_JC[job]]
    cost_C = np.where(fits_C, all_wishes.cost_JC[job], np.inf)
    best = int(cost_C.argmin())
    return best if np.isfinite(cost_C[best]) else WAIT
