"""The split that is worth most of a cluster that is paid for anyway.

An hour of a job costs its owner that hour, and all others what its GPUs are worth to them: their going rate
(`going_rate`). It counts for more where little is left to do, because the GPUs are free again soon. A job is worth
what it costs in the shape in which that buys most work; and of its shapes the value is

    (1 + rate x GPUs of that shape)  x  (work done / work done in that shape) ** power  x  a power of its age
        x  the part of the time that is not lost to the pause

The split with the largest sum is found exactly, among those in which no job waits for want of the least that it needs,
as far as that goes round.

A job that is alone on a cluster could have all of it, and would end a little sooner for many times the GPU-hours; the
next one that comes would make it pause to give most of them back. So a wider shape counts only if it is efficient: from
the narrower one that counts, work must grow by a power of the GPUs. A job with a deadline may have all that helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.planning.jobs import Jobs
from sublet.planning.menu import Menu
from sublet.planning.options import OptionsTable
from sublet.planning.value_of_time import ValueOfTime
from sublet.policies.price.choices import SAFETY
from sublet.policies.price.congestion import WAIT, uses_of
from sublet.policies.price.going_rate import going_rate, paid_for_gpus
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.knapsack.split import best_split
from sublet.solve.mip.moves import Coupled, best_moves

__all__ = ["Claims", "Split", "efficient", "efficient_shapes", "hurries", "split", "turns"]

SHORT_FIRST = 0.35  # power of the work left, in what GPUs cost a job: 0 is blind to it, 1 all but starves long jobs
CONCAVE = 0.85  # power of the work done: below 1 fewer jobs move far
AGE = 0.2  # power of a job's age: what keeps the longest from waiting for ever costs the mean next to nothing
YOUNG_H = 0.5  # beside its age
AGAIN = 0.33  # a shape is thought to last so many times as long as the job has kept what it has: who moves, moves again
SOON_H = 0.05  # beside the time that it has kept it
DUE = 1e6  # times the value of any other: who has waited too long comes first, the oldest before all
TRIFLE_H = 1e-9  # what is all but done lasts this long
TOLERANCE = 0.1  # of the value of the best split over several pools: what is proven beyond it buys nothing
IN_ORDER = 1e-6  # relative: enough to tell jobs that are alike apart
LEAST_POWER = 0.25  # twice the GPUs do at least 19 % more

# These were chosen on jobs that no study reports: Pollux's at load 1, saturn-1 to 4, philly-1, 2, 4 and 5
# (docs/background/sharing-a-cluster.md).

# J jobs, N of them with a deadline that may be met, in order; U kinds of jobs: a menu and a phase, C shapes (padded:
# value -inf), R rows, K rows that a shape uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claims of all jobs: options now, GPU-hours left at their most efficient over their weight, what they have."""

    table: OptionsTable
    left_h_J: Floats
    sized: bool  # whether these tell one job from another
    efficient_JC: Bools  # shapes that are worth their GPUs
    weight_J: Floats
    age_h_J: Floats  # since it came
    kept_h_J: Floats  # since it got what it has; 0 if it has nothing
    held_J: Ints  # column of a job's shape; WAIT if it has none, or one that is not on the menu
    runs_J: Ints  # the same of those alone that need no pause to have it
    due_s_J: Floats  # how much longer ago it came than anybody should have to wait; 0 = it did not
    pinned_J: Bools  # it has only just got its GPUs: it may be resized, not stopped
    turn_J: Floats  # its place among those that come first by a deadline; inf = it is not one of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """A column or WAIT per job, and what one more GPU of each row would add."""

    column_J: Ints
    price_R: Floats


def split(claims: Claims, most_R: Floats) -> Split:
    """The most valuable split, to a tenth for several pools. Cost: `best_split`, or `best_moves` for those."""
    can_JC = _possible(claims, most_R)
    sure_J = _sure(claims, can_JC) if len(most_R) == 1 else None
    if sure_J is not None and _fits(claims.table, sure_J, most_R):
        return Split(column_J=sure_J + WAIT, price_R=np.zeros(len(most_R)))
    return _most_valuable(claims, can_JC, most_R)


def _possible(claims: Claims, most_R: Floats) -> Bools:
    """Which shapes could be had alone, and are worth it; what a job has it may keep."""
    table = claims.table
    within_KJC = table.gpus_KJC <= np.maximum(most_R, 0.0)[table.row_KJC]
    able_JC = (table.cost_JC < np.inf) & (within_KJC[0] if len(within_KJC) == 1 else within_KJC.all(axis=0))
    can_JC = able_JC & claims.efficient_JC
    for held_J in (claims.held_J, claims.runs_J):
        (has,) = (held_J != WAIT).nonzero()
        can_JC[has, held_J[has]] = able_JC[has, held_J[has]]
    (stuck,) = np.logical_not(can_JC.any(axis=1)).nonzero()
    can_JC[stuck] = able_JC[stuck]  # what would be worth it is not to be had
    return np.asarray(can_JC)


def _sure(claims: Claims, can_JC: Bools) -> Ints | None:
    """The shape worth most to each, where that is clear without values; None if it is not for all of them.

    A job in the fastest shape wants no other, for it would pause to do no more; one with a single shape takes it.
    """
    rate_JC = np.where(can_JC, claims.table.rate_JC, 0.0)
    most_J = rate_JC.max(axis=1)
    one_J = can_JC.sum(axis=1) == 1
    runs_J = claims.runs_J
    content_J = (runs_J != WAIT) & (rate_JC[np.arange(len(runs_J)), runs_J] >= most_J) & (most_J > 0.0)
    if not (content_J | one_J).all():
        return None
    return np.where(content_J, runs_J, can_JC.argmax(axis=1)) - WAIT


def _most_valuable(claims: Claims, can_JC: Bools, most_R: Floats) -> Split:
    table, value_JC = claims.table, _values(claims, can_JC, most_R)
    # Waiting is a column before the others; who must run loses more by it than all others could gain.
    everything = float(value_JC.max(axis=1, initial=0.0).sum())
    wait_J1 = np.where(_must_run(claims, float(most_R.sum())), -1.0 - everything, 0.0)[:, None]
    gain_JC = np.concatenate((wait_J1, value_JC), axis=1)
    best_J, start_J = gain_JC.argmax(axis=1), claims.held_J - WAIT
    if _fits(table, best_J, most_R):  # all can have what is worth most to them, and keep what is worth as much
        job_J = np.arange(len(table.menus))
        keeps = len(most_R) > 1 and gain_JC[job_J, start_J].sum() >= gain_JC[job_J, best_J].sum()
        keeps = keeps and _fits(table, start_J, most_R)
        return Split(column_J=(start_J if keeps else best_J) + WAIT, price_R=np.zeros(len(most_R)))
    if len(most_R) == 1:
        sizes_JC = np.zeros(gain_JC.shape, dtype=np.intp)
        sizes_JC[:, 1:] = table.gpus_JC
        whole = best_split(gain_JC, int(most_R[0]), sizes=sizes_JC)
        return Split(column_J=np.asarray(whole.column_J) + WAIT, price_R=np.array([whole.price]))
    uses_RJC = uses_of(table.row_KJC, table.gpus_KJC, len(most_R))
    asked = Coupled.from_uses(gain_JC, [int(most) for most in most_R], uses_RJC)
    found = best_moves(asked, start=start_J, tolerance=TOLERANCE, rough=True)
    return Split(column_J=np.asarray(found.column_J) + WAIT, price_R=found.price_R[: len(most_R)])


def _fits(table: OptionsTable, choice_J: Ints, most_R: Floats) -> bool:
    """Whether all can have this together; 0 is to wait, and 1 the first shape."""
    (runs,) = choice_J.nonzero()
    at_J = choice_J[runs] - 1
    used_R = sum(
        np.bincount(row_JC[runs, at_J], weights=gpus_JC[runs, at_J], minlength=len(most_R))
        for row_JC, gpus_JC in zip(table.row_KJC, table.gpus_KJC, strict=True)
    )
    return bool((used_R <= most_R).all())


def _must_run(claims: Claims, room: float) -> Bools:
    """No job waits so that others can have more: the least that each needs is given first, the least work first.

    Without this a crowd of short jobs would be so wide, and so wasteful, that the long ones never catch up. Where many
    GPUs waste nothing it is not needed: one after the other, jobs that scale perfectly end sooner than side by side.
    """
    if (claims.turn_J < np.inf).any():
        return _must_run_in_time(claims, room)
    if claims.table.perfect_J.all():
        return claims.pinned_J
    need_J = claims.table.need_J
    if need_J.sum() <= room:
        return np.ones(len(need_J), dtype=np.bool_)
    order_J = np.lexsort((claims.left_h_J, -claims.due_s_J))
    room_J = room - need_J[order_J].cumsum()
    first = int((room_J >= 0).argmin())  # the first that there is no room for; those before it all fit
    must_J = claims.pinned_J.copy()
    must_J[order_J[:first]] = True
    room, least = room if first == 0 else float(room_J[first - 1]), need_J.min()
    for at in order_J[first + 1 :].tolist():
        if room < least:
            break
        if need_J[at] <= room:
            room -= float(need_J[at])
            must_J[at] = True
    return must_J


def _must_run_in_time(claims: Claims, room: float) -> Bools:
    """The same where deadlines are to be met: they go before all, also before a job that has only just got its GPUs."""
    need_J, pinned_J = claims.table.need_J, claims.pinned_J
    order_J = np.lexsort((claims.left_h_J, -claims.due_s_J, ~pinned_J, claims.turn_J))
    if claims.table.perfect_J.all():
        order_J = order_J[: np.count_nonzero(pinned_J | (claims.turn_J < np.inf))]
    must_J = np.zeros(len(need_J), dtype=np.bool_)
    for at in order_J.tolist():
        if need_J[at] <= room:
            room -= float(need_J[at])
            must_J[at] = True
    return must_J


def _values(claims: Claims, can_JC: Bools, most_R: Floats) -> Floats:
    """The worth of each shape; -inf where it cannot be had. Worked out where it can: most rows are half padding."""
    table, left_h_J = claims.table, claims.left_h_J
    weight_J = claims.weight_J / _median(claims.weight_J)  # only how they are to one another counts
    job_J, at = np.arange(len(table.menus)), can_JC.nonzero()
    job_X, rate_X = at[0], table.rate_JC[at]
    worth_X = rate_X / table.gpu_rate_J[job_X]  # in GPUs at their best
    pause_X = table.now_JC[at] - table.left_J[job_X] / rate_X
    trains_X = AGAIN * (claims.kept_h_J + SOON_H)[job_X]
    if claims.sized:  # to the end of the job if that is sooner
        trains_X = np.clip((left_h_J * claims.weight_J)[job_X] / worth_X, TRIFLE_H, trains_X)
    useful_X = np.maximum(trains_X / (pause_X + trains_X), IN_ORDER)  # an idle GPU is worth less
    hours_JC = np.full(can_JC.shape, np.inf)
    hours_JC[at] = 1.0 / worth_X
    rate_R = going_rate(hours_JC, weight_J, table.row_KJC, table.gpus_KJC, np.maximum(most_R, 0.0))
    short_J = (_median(left_h_J) / left_h_J) ** SHORT_FIRST
    costs_JC = weight_J[:, None] + short_J[:, None] * paid_for_gpus(rate_R, table.row_KJC, table.gpus_KJC)
    best_J = (costs_JC * hours_JC).argmin(axis=1)
    job_cost_J = costs_JC[job_J, best_J] * (claims.age_h_J + YOUNG_H) ** AGE * (1.0 - IN_ORDER * job_J)
    value_X = job_cost_J[job_X] * (worth_X * hours_JC[job_J, best_J][job_X]) ** CONCAVE * useful_X
    value_JC = np.full(can_JC.shape, -np.inf)
    value_JC[at] = np.where(np.isnan(value_X), -np.inf, value_X)
    due_J = claims.due_s_J > 0
    if due_J.any():
        value_JC[due_J] *= (DUE + claims.due_s_J[due_J])[:, None]
    (has,) = (claims.held_J != WAIT).nonzero()
    value_JC[has, claims.held_J[has]] *= 1.0 + IN_ORDER  # of shapes that are worth the same
    for row in has[table.doubted_J[has]].tolist():
        menu, held = table.menus[row], int(claims.held_J[row])
        if menu.doubt_C is not None:  # what is held is known better than what is not
            other = np.flatnonzero(menu.belief_C != menu.belief_C[held])
            value_JC[row, other] /= 1.0 + np.hypot(menu.doubt_C, menu.doubt_C[held])[other]
    return value_JC


def _median(of_J: Floats) -> float:
    """As `np.median`, without its many cases."""
    sorted_J, middle = np.sort(of_J), len(of_J) // 2
    return float(sorted_J[middle] if len(of_J) % 2 else (sorted_J[middle - 1] + sorted_J[middle]) / 2.0)


# ---------------------------------------------------------------------- what each may choose, and who comes first


def hurries(jobs: Jobs, value: ValueOfTime) -> Bools:
    """(J,): has a deadline, or its owner asked for the quickest; all, where no money is to be saved."""
    if value.worth is None:
        return np.ones(len(jobs.states), dtype=np.bool_)
    return np.asarray(np.isfinite(jobs.deadline_s_J) | jobs.hurries_J)


def efficient(jobs: Jobs, value: ValueOfTime) -> Bools:
    """(J, C): what each may choose; all that there is, if it is in a hurry."""
    worth_UC = _efficient_by_kind(jobs.kinds)
    return np.asarray(worth_UC[jobs.kind_J] | hurries(jobs, value)[:, None])


@lru_cache(maxsize=4)  # from one decision to the next they are mostly the same
def _efficient_by_kind(kinds: tuple[tuple[Menu, int], ...]) -> Bools:
    worth_UC = np.zeros((len(kinds), max(len(menu.shapes) for menu, _ in kinds)), dtype=np.bool_)
    for row, (menu, phase) in enumerate(kinds):
        worth_UC[row, : len(menu.shapes)] = efficient_shapes(menu, phase)
    return worth_UC


@lru_cache(maxsize=4096)
def efficient_shapes(menu: Menu, phase: int) -> Bools:
    """(C,): of each pool the narrowest shape that trains, and each that does enough more than the last that counts.

    All where speeds are believed and not known: what is thought to be no faster may be tried.
    """
    rate_C, gpus_C = menu.rate_EC[phase], menu.gpus_C
    if menu.doubt_C is not None:
        return np.ones(len(rate_C), dtype=np.bool_)
    worth_C = np.zeros(len(rate_C), dtype=np.bool_)
    widest: dict[int, tuple[float, float]] = {}  # of those that count so far, by pool: GPUs and rate
    for at in np.lexsort((-rate_C, gpus_C)).tolist():
        pool, gpus, rate = int(menu.row_KC[0, at]), float(gpus_C[at]), float(rate_C[at])
        narrower, reached = widest.get(pool, (gpus, 0.0))
        if rate > 0.0 and (gpus == narrower or rate >= reached * (gpus / narrower) ** LEAST_POWER):
            worth_C[at] = True
            widest[pool] = (gpus, max(rate, reached))  # of as many GPUs, spread otherwise, the fastest comes first
    return worth_C


def turns(jobs: Jobs, table: OptionsTable, now_s: float) -> Floats:
    """(J,): rank by deadline, the earliest that can be met, from 0 on; inf for all others. Cost: O(J C).

    On one GPU no order meets deadlines that the earliest first does not, whatever comes later (Liu and Layland 1973).
    So a job with a deadline goes before one without, however much time there seems: an hour that is given away may
    be the one that a job needs that is not here yet.
    """
    left_h_J, turn_J = (jobs.deadline_s_J - now_s) / SECONDS_PER_H, np.full(len(jobs.states), np.inf)
    if not (left_h_J < np.inf).any():
        return turn_J
    hours_J = np.where(table.cost_JC < np.inf, table.hours_JC, np.inf).min(axis=1)
    # Speeds are estimates: a job that is a little late may be in time. Of equal ones, those with GPUs stand first.
    first_J = (left_h_J < np.inf) & (SAFETY * hours_J <= left_h_J)
    order_N = np.argsort(left_h_J, kind="stable")
    order_N = order_N[first_J[order_N]]
    turn_J[order_N] = np.arange(len(order_N))
    return turn_J
