"""Sharing out pools that are short, where not all jobs can have what suits them best.

Each GPU of a short pool carries a surcharge per hour, raised until the wishes fit. All jobs shrink along their own
curves, those that lose least by it first, and some go to another pool. The surcharge is in proportion to the work that
a job has left: a GPU that speeds up a short job is free again soon, and on a short cluster that is what it is worth.

Many splits of short pools are nearly as good as the best one, which changes with every minute and every speed that is
learned. So jobs that have a place keep it, unless a newcomer gains more by it than they lose. A new split is weighed
against the steady one: jobs with a place stay as far as there is room, and the others take the rest. Of those with a
place, each may take what is better for it; none is moved so that another of them can be. They make room for a newcomer
if that leaves fewer waiting, or if it pays. Newcomers have nothing to keep from one another: where no other job gives
way, the new split stands.

The gain of a newcomer ends early: a job that gives way would have made room anyway by the time it ends. So the gain
counts only until then:

    sum over newcomers of (its gain x the part of its time until a job that loses would have ended)  >  losses

Money that rows share goes to the cheapest row. A job that cannot do without a dear one, because its owner wants a core
on demand or because it runs nowhere else, would wait for as long as the cheap one can use all there is. So money is
kept for the least of each job first (`obtainable_with_least`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sublet.planning.options import OptionsTable
from sublet.planning.terms import Terms
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.mip.moves import Coupled, best_moves

WAIT = -1
BEFORE = ((0, 0), (0, 0), (1, 0))  # a column for waiting, which uses nothing, before all others
TRIES = 8  # quadruplings of a surcharge that is as much as all else together: beyond that nothing changes
LEAST = 1e-6  # of the same: less moves no job
CLOSE = 1e-3  # relative: what is left over is filled afterwards
TOLERANCE = 0.002  # of the saving, where jobs are assigned to several pools

# J jobs, C shapes (padded: infinite cost), R rows, K rows that a shape uses: of pools with both markets two


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A shape (its column) or WAIT per job, and the surcharge of each pool in USD per GPU-hour for the median job."""

    column_J: Ints
    surcharge_R: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wishes:
    """The options of all jobs side by side."""

    row_J: Ints  # where each job stands among those that were asked: some may have nowhere to go
    cost_JC: Floats
    row_KJC: Ints  # where its GPUs are; the first tells pools apart
    gpus_KJC: Floats
    use_KJC: Floats  # GPU-hours, weighed by the work that is left

    def columns(self, surcharge_R: Floats) -> Ints:
        """The wish of each job at these surcharges."""
        column_J: Ints = (self.cost_JC + self.scarce(surcharge_R)).argmin(axis=1)
        return column_J

    def scarce(self, surcharge_R: Floats) -> Floats:
        """The cost of these surcharges."""
        if not surcharge_R.any():
            return np.zeros_like(self.cost_JC)
        return np.asarray((surcharge_R[self.row_KJC] * self.use_KJC).sum(axis=0))

    def gpus(self, column_J: Ints, rows: int) -> Floats:
        """How many that is of each row."""
        runs_J = np.flatnonzero(column_J != WAIT)
        at = (slice(None), runs_J, column_J[runs_J])
        gpus_R = np.zeros(rows)
        np.add.at(gpus_R, self.row_KJC[at], self.gpus_KJC[at])
        return gpus_R

    def fits(self, job: int, room_R: Floats) -> Bools:
        """Which of its shapes there is room for."""
        room_R = np.maximum(room_R, 0.0)  # a shape that needs none of a row needs no room there
        return np.asarray((self.gpus_KJC[:, job] <= room_R[self.row_KJC[:, job]]).all(axis=0))

    def fits_beside(self, column_J: Ints, room_R: Floats) -> Bools:
        """The same of all jobs, each in the stead of what it has of these: a row per job."""
        runs_J, own_JR = np.flatnonzero(column_J != WAIT), np.zeros((len(column_J), len(room_R)))
        for row_JC, gpus_JC in zip(self.row_KJC, self.gpus_KJC, strict=True):
            own_JR[runs_J, row_JC[runs_J, column_J[runs_J]]] += gpus_JC[runs_J, column_J[runs_J]]
        room_JR = np.maximum(room_R + own_JR, 0.0)
        room_KJC = room_JR[np.arange(len(column_J))[:, None], self.row_KJC]
        return np.asarray((self.gpus_KJC <= room_KJC).all(axis=0))

    def take(self, job: int, column: int, room_R: Floats, sign: float = 1.0) -> None:
        """Take what a shape needs out of the room; with -1 it is given back."""
        if column != WAIT:
            for row, gpus in zip(self.row_KJC[:, job, column], self.gpus_KJC[:, job, column], strict=True):
                room_R[row] -= sign * gpus


def share_pools(
    table: OptionsTable, work_J: Floats, rank_J: Floats, held_J: Ints, terms: Terms, *, by_owner: bool
) -> tuple[Wishes, Fit]:
    """Everybody at once, within what can be held. All but `terms` are of the jobs that were asked.

    `by_owner`: where no budget rules, each job has its own value of time, so that costs add up and places are kept.
    """
    every = wishes(table, work_J, terms.alone_R)
    rows = len(terms.rows)
    if not len(every.row_J):
        return every, Fit(column_J=every.row_J, surcharge_R=np.zeros(rows))
    able, rank_J, held_J = table.take(every.row_J.tolist()), rank_J[every.row_J], held_J[every.row_J]
    free_J = every.columns(np.zeros(rows))
    split_by = _cheapest if by_owner and rows > 1 else fit

    def most_of(wanted_R: Floats) -> Floats:
        most_R = terms.obtainable(wanted_R)
        if (most_R >= np.minimum(wanted_R, terms.alone_R)).all():
            return most_R
        return obtainable_with_least(
            terms,
            wanted_R,
            most_R,
            row_KJC=every.row_KJC,
            gpus_KJC=every.gpus_KJC,
            able_JC=np.isfinite(every.cost_JC),
            rank_J=rank_J,
        )

    found = split_by(every, rank_J, most_of(every.gpus(free_J, rows)))
    column_J = found.column_J
    if by_owner or able.doubted_J.any():
        wanted_R = np.maximum(every.gpus(np.where(held_J == WAIT, free_J, held_J), rows), every.gpus(free_J, rows))
        most_R = most_of(wanted_R)
        old_J = _steady(every, held_J, rank_J, most_R)
        if (old_J == WAIT).sum() > (column_J == WAIT).sum():
            old_J = _pinned(every, held_J, rank_J, most_R)
        if not _pays(able, held_J, column_J, old_J):
            column_J = old_J
    return every, Fit(column_J=column_J, surcharge_R=found.surcharge_R)


def wishes(table: OptionsTable, work_J: Floats, most_R: Floats) -> Wishes:
    """Those that could run on no more than `most_R` GPUs of a pool; `work_J` is what each has left, over its weight.

    Precondition: at least one job, and all work above 0.
    """
    row_KJC, gpus_KJC = table.row_KJC, table.gpus_KJC
    fits_JC = ((gpus_KJC <= most_R[row_KJC]) | (gpus_KJC == 0)).all(axis=0)
    cost_JC = np.where(fits_JC, table.cost_JC, np.inf)
    now_JC = np.where(np.isfinite(table.cost_JC), table.now_JC, 0.0)
    use_KJC = gpus_KJC * now_JC * (work_J / np.median(work_J))[:, None]
    row_J = np.flatnonzero(np.isfinite(cost_JC).any(axis=1))
    return Wishes(
        row_J=row_J,
        cost_JC=cost_JC[row_J],
        row_KJC=row_KJC[:, row_J],
        gpus_KJC=gpus_KJC[:, row_J],
        use_KJC=use_KJC[:, row_J],
    )


def fit(all_wishes: Wishes, rank_J: Floats, most_R: Floats) -> Fit:
    """Shapes that fit. Where even the least is too much, those that rank behind (a larger number) wait.

    Rows that are short carry one surcharge, at which their GPUs together suffice; the choice among several rows is an
    integer program. Cost: O(J C) a few dozen times, and that program.
    """
    rows = len(most_R)
    column_J = all_wishes.columns(np.zeros(rows))
    short_R = all_wishes.gpus(column_J, rows) > most_R
    if not short_R.any():
        return Fit(column_J=column_J, surcharge_R=np.zeros(rows))
    surcharge_R = np.zeros(rows)
    for _ in range(rows):  # those that are pushed out of one row may make another one short
        surcharge_R = np.where(short_R, _surcharge(all_wishes, short_R, most_R), 0.0)
        column_J = all_wishes.columns(surcharge_R)
        over_R = all_wishes.gpus(column_J, rows) > most_R
        if not (over_R & ~short_R).any():
            break
        short_R |= over_R
    if rows > 1 and (all_wishes.gpus(column_J, rows) > most_R).any():
        column_J = _assign(all_wishes, surcharge_R, rank_J, most_R)
    column_J = _trim(all_wishes, column_J, rank_J, most_R)
    return Fit(column_J=_fill(all_wishes, column_J, rank_J, most_R), surcharge_R=surcharge_R)


def _cheapest(all_wishes: Wishes, rank_J: Floats, most_R: Floats) -> Fit:
    """The least cost of all jobs together that fits; as few as possible wait. Cost: an integer program."""
    rows = len(most_R)
    column_J = all_wishes.columns(np.zeros(rows))
    if (all_wishes.gpus(column_J, rows) > most_R).any():
        column_J = _assign(all_wishes, np.zeros(rows), rank_J, most_R)
        column_J = _fill(all_wishes, _trim(all_wishes, column_J, rank_J, most_R), rank_J, most_R)
    return Fit(column_J=column_J, surcharge_R=np.zeros(rows))


def _surcharge(all_wishes: Wishes, short_R: Bools, most_R: Floats) -> float:
    """The least at which no more is wanted of these rows together than there is, or beyond which nothing changes."""
    most = float(most_R[short_R].sum())

    def fits(surcharge: float) -> bool:
        column_J = all_wishes.columns(np.where(short_R, surcharge, 0.0))
        return bool(all_wishes.gpus(column_J, len(most_R))[short_R].sum() <= most)

    use_JC = all_wishes.use_KJC.sum(axis=0)
    counts_JC = np.isfinite(all_wishes.cost_JC) & (use_JC > 0)
    high = 2.0 * float((all_wishes.cost_JC[counts_JC] / use_JC[counts_JC]).max(initial=1.0))
    for _ in range(TRIES):
        if fits(high):
            break
        high *= 4.0
    else:
        return high  # not even at their most efficient do all fit: some will wait
    low = high * LEAST
    if fits(low):
        return low
    while high > low * (1 + CLOSE):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _assign(all_wishes: Wishes, surcharge_R: Floats, rank_J: Floats, most_R: Floats) -> Ints:
    """The least cost, surcharge included, that fits every row; as few as possible wait, and these rank behind."""
    cost_JC = all_wishes.cost_JC + all_wishes.scarce(surcharge_R)
    saved_JC = np.nanmax(np.where(np.isfinite(cost_JC), cost_JC, np.nan), axis=1, keepdims=True) - cost_JC
    scale = float(np.where(np.isfinite(saved_JC), saved_JC, 0.0).max(initial=1e-9)) * len(rank_J)
    place_J = np.empty(len(rank_J))
    place_J[np.argsort(rank_J, kind="stable")] = np.arange(len(rank_J))
    wait_J1 = -scale * (2.0 - place_J / len(rank_J))[:, None]
    ample = int(all_wishes.gpus_KJC.sum(axis=0).max(axis=1).sum())
    limits = [int(min(most, ample)) for most in most_R]
    gain_JC = np.concatenate((wait_J1, saved_JC), axis=1)
    row_KJC, units_KJC = np.pad(all_wishes.row_KJC, BEFORE), np.pad(all_wishes.gpus_KJC, BEFORE)
    asked = Coupled.from_rows(gain_JC, limits, row_KJC, units_KJC)
    return np.asarray(best_moves(asked, tolerance=TOLERANCE).column_J) + WAIT


def _trim(all_wishes: Wishes, column_J: Ints, rank_J: Floats, most_R: Floats) -> Ints:
    """In order of rank, as long as there is room; a job whose pool is full takes the best that fits, or waits."""
    if (all_wishes.gpus(column_J, len(most_R)) <= most_R).all():
        return column_J
    room_R = most_R.copy()
    column_J = column_J.copy()
    for job in np.argsort(rank_J, kind="stable").tolist():
        wanted = column_J[job]
        if wanted == WAIT or not all_wishes.fits(job, room_R)[wanted]:
            wanted = _best_within(all_wishes, job, room_R)
            column_J[job] = wanted
        all_wishes.take(job, wanted, room_R)
    return column_J


def _fill(all_wishes: Wishes, column_J: Ints, rank_J: Floats, most_R: Floats) -> Ints:
    """Give what is left over, in order of rank, to jobs that it helps."""
    room_R = most_R - all_wishes.gpus(column_J, len(most_R))
    if not (room_R > 0).any() or not len(column_J):
        return column_J
    now_J = np.where(column_J == WAIT, np.inf, all_wishes.cost_JC[np.arange(len(column_J)), column_J])
    better_JC = (all_wishes.cost_JC < now_J[:, None]) & all_wishes.fits_beside(column_J, room_R)
    helped_J: Bools = np.asarray(better_JC.any(axis=1))
    column_J, moved = column_J.copy(), False
    for job in np.argsort(rank_J, kind="stable").tolist():
        if not (moved or helped_J[job]):
            continue  # there is as much room as there was
        now = column_J[job]
        all_wishes.take(job, now, room_R, -1.0)
        best = _best_within(all_wishes, job, room_R)
        if now == WAIT or (best != WAIT and all_wishes.cost_JC[job, best] < all_wishes.cost_JC[job, now]):
            now = column_J[job] = best
            moved = True
        all_wishes.take(job, now, room_R)
    return column_J


def _best_within(all_wishes: Wishes, job: int, room_R: Floats) -> int:
    """The column that costs a job least of those that there is room for; WAIT if there is none."""
    cost_C = np.where(all_wishes.fits(job, room_R), all_wishes.cost_JC[job], np.inf)
    best = int(cost_C.argmin())
    return best if np.isfinite(cost_C[best]) else WAIT


# ---------------------------------------------------------------------- a job that has a place keeps it


def _steady(all_wishes: Wishes, held_J: Ints, rank_J: Floats, most_R: Floats) -> Ints:
    """Those that run stay (`held_J`, WAIT for the others), the last in rank give way where there is too little room.

    Then everybody takes what is better for it, as far as there is room: first those that have nothing, in order of
    rank, then those to which it is worth most. Cost: O(J C).
    """
    rows = np.arange(len(held_J))
    able_J = (held_J != WAIT) & np.isfinite(all_wishes.cost_JC[rows, held_J])
    column_J: Ints = np.where(able_J, held_J, WAIT)
    first_J = np.where(able_J, rank_J, np.inf)  # jobs that run come before those that do not
    column_J = _trim(all_wishes, column_J, first_J, most_R)
    return _fill(all_wishes, column_J, _by_gain(all_wishes, column_J, rank_J, most_R), most_R)


def _pinned(all_wishes: Wishes, held_J: Ints, rank_J: Floats, most_R: Floats) -> Ints:
    """Those that run stay in their pools and shrink there; as few as possible wait. Cost: an integer program."""
    rows = np.arange(len(held_J))
    home_JC = all_wishes.row_KJC[0]
    own_JC = np.where(home_JC == home_JC[rows, held_J][:, None], all_wishes.cost_JC, np.inf)
    stays_J = (held_J != WAIT) & np.isfinite(own_JC).any(axis=1)
    cost_JC = np.where(stays_J[:, None], own_JC, all_wishes.cost_JC)
    return _cheapest(replace(all_wishes, cost_JC=cost_JC), rank_J, most_R).column_J


def _by_gain(all_wishes: Wishes, column_J: Ints, rank_J: Floats, most_R: Floats) -> Floats:
    """Ranks: jobs that wait come first, then those that gain most by what there is room for now."""
    room_R = most_R - all_wishes.gpus(column_J, len(most_R))
    best_J = np.where(all_wishes.fits_beside(column_J, room_R), all_wishes.cost_JC, np.inf).min(axis=1)
    gain_J = np.full(len(column_J), np.inf)
    runs_J = np.flatnonzero(column_J != WAIT)
    gain_J[runs_J] = all_wishes.cost_JC[runs_J, column_J[runs_J]] - best_J[runs_J]
    place_J = np.empty(len(column_J))
    place_J[np.lexsort((rank_J, -gain_J))] = np.arange(len(column_J))
    return place_J


def _pays(table: OptionsTable, held_J: Ints, new_J: Ints, old_J: Ints) -> bool:
    """Whether a new split is better than the old: no job with a place loses, or newcomers gain more. Cost: O(J).

    Among newcomers the new split stands: none has anything to keep, and it counts that short jobs leave soon.
    """
    if (new_J == WAIT).sum() != (old_J == WAIT).sum():
        return bool((new_J == WAIT).sum() < (old_J == WAIT).sum())
    gained, lost, until_h, gives_way = [], 0.0, np.inf, False
    for row, (held, new, old) in enumerate(zip(held_J.tolist(), new_J.tolist(), old_J.tolist(), strict=True)):
        if new == old:
            continue
        if WAIT in (new, old):
            return False  # one would wait in another's stead
        cost_C = table.cost_JC[row]
        gain, hours = float(cost_C[old] - cost_C[new]), float(table.hours_JC[row, old])
        if gain < 0.0:
            lost -= gain
            until_h = min(until_h, hours)
            gives_way |= held != WAIT
        elif held == WAIT:
            gained.append((gain, hours))
    return not gives_way or sum(gain * min(1.0, until_h / hours) for gain, hours in gained if hours) > lost


# ---------------------------------------------------------------------- money for the least of each job


# J jobs, C shapes, R rows, K rows that a shape uses


def obtainable_with_least(
    terms: Terms,
    wanted_R: Floats,
    most_R: Floats,
    *,
    row_KJC: Ints,
    gpus_KJC: Floats,
    able_JC: Bools,
    rank_J: Floats,
) -> Floats:
    """GPUs of each row that can be held together if this many are wanted; the least of the first in rank before all.

    `able_JC`: what each job could run on. Nothing is kept unless a job needs a row that is short for want of money:
    one of which `most_R`, what could be held otherwise, is less than is wanted and could be had.
    """
    short_R = most_R < np.minimum(wanted_R, terms.alone_R)
    spared_JC = ~((gpus_KJC > 0) & short_R[row_KJC]).any(axis=0)
    if (able_JC & spared_JC).any(axis=1).all():
        return most_R
    least_JR = _least(terms, row_KJC, gpus_KJC, able_JC)[np.argsort(rank_J, kind="stable")]
    kinds_XR, kind_J = np.unique(least_JR, axis=0, return_inverse=True)
    alone_X = np.array([terms.holds(least_R) for least_R in kinds_XR])
    sum_JR = least_JR[alone_X[kind_J.ravel()]].cumsum(axis=0)
    first, beyond = 0, len(sum_JR) + 1  # the most of them that can be held together
    while beyond - first > 1:
        middle = (first + beyond) // 2
        first, beyond = (middle, beyond) if terms.holds(sum_JR[middle - 1]) else (first, middle)
    return terms.obtainable(wanted_R, sum_JR[first - 1]) if first else most_R


def _least(terms: Terms, row_KJC: Ints, gpus_KJC: Floats, able_JC: Bools) -> Floats:
    """GPUs of each row in the shape of each job whose nodes cost least."""
    size_R = np.array([terms.snapshot.pools[row.pool].gpus_per_node for row in terms.rows], dtype=np.float64)
    usd_KJC = np.ceil(gpus_KJC / size_R[row_KJC]) * (size_R * terms.rent_R)[row_KJC]
    column_J = np.where(able_JC, usd_KJC.sum(axis=0), np.inf).argmin(axis=1)
    job_J = np.arange(len(column_J))
    least_JR = np.zeros((len(column_J), len(terms.rows)))
    for row_JC, gpus_JC in zip(row_KJC, gpus_KJC, strict=True):
        np.add.at(least_JR, (job_J, row_JC[job_J, column_J]), gpus_JC[job_J, column_J])
    return least_JR
