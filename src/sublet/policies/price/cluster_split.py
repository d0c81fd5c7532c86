"""Sharing out a cluster that is paid for anyway: the split that is worth most.

An hour of a job costs its owner that hour, and all others what its GPUs are worth to them: their going rate. That
counts for more where little work is left, because the GPUs are free again soon. A job is worth its cost in the shape in
which that buys most work. Of its shapes the value is

    (1 + rate x GPUs of that shape)  x  (work done / work done in that shape) ** power  x  a power of its age
        x  the part of the time that is not lost to the pause

The split with the largest sum is found exactly. It is one of those in which no job waits for the least that it needs,
as far as that goes round.

A job alone on a cluster could have all of it, and would end a little sooner for many times the GPU-hours. The next one
that comes would make it pause to give most of them back. So a larger shape counts only if it is efficient: from the
smaller one that counts, work must grow by a power of the GPUs. A job with a deadline may have all that helps.

A GPU that is paid for costs no rent, but a job that has it keeps it from others. If each job paid so many job-hours for
an hour of a GPU, it would take the shape in which its time and its GPUs together cost least,

    (1 + price x GPUs) / work done in an hour

The going rate is the one price at which jobs want as many GPUs as there are. So a job that scales badly pays for its
time, one that scales well for its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.demand import Ended
from sublet.domain.units import SECONDS_PER_H
from sublet.planning.jobs import Jobs
from sublet.planning.menu import Menu
from sublet.planning.options import OptionsTable
from sublet.planning.value_of_time import ValueOfTime
from sublet.policies.price.beliefs import SHORT_FIRST, believed_left_h
from sublet.policies.price.choices import SAFETY, TRIFLE_H, Asked
from sublet.policies.price.congestion import BEFORE, WAIT
from sublet.policies.price.decision import Decision, WorkBelief
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.knapsack.split import best_split
from sublet.solve.mip.moves import Coupled, best_moves

SIZED = frozenset({WorkBelief.DECLARED, WorkBelief.LEARNED})  # what is believed is near what is

CONCAVE = 0.85  # power of the work done: below 1 fewer jobs move far
AGE = 0.2  # power of a job's age: what keeps the longest from waiting for ever costs the mean next to nothing
YOUNG_H = 0.5  # beside its age
AGAIN = 0.33  # a shape is thought to last so many times as long as the job has kept what it has
SOON_H = 0.05  # beside the time that it has kept it
DUE = 1e6  # times the value of any other: jobs that waited too long come first, the oldest before all
TOLERANCE = 0.1  # of the value of the best split over several pools: what is proven beyond it buys nothing
IN_ORDER = 1e-6  # relative: enough to tell jobs that are alike apart
LEAST_POWER = 0.25  # twice the GPUs do at least 19 % more

LEAST, MOST = 1e-5, 1e3  # job-hours per GPU-hour
CLOSE = 1.03  # a price is found to a factor of this: it only weighs jobs against one another
SOME = 0.1  # where there is enough of all pools together, and not of one: whence prices drift apart
ROUNDS = 10  # of letting prices of several pools drift apart
DRIFT = 0.6  # power of what is wanted over what is there
FURTHEST = 3.0  # in one round

# These were chosen on jobs that no study reports: Pollux's at load 1, saturn-1 to 4, philly-1, 2, 4 and 5
# (docs/background/sharing-a-cluster.md).

# J jobs, N of them with a deadline that may be met, in order; U kinds of jobs: a menu and a phase, C shapes (padded:
# value -inf), R rows, K rows that a shape uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of all jobs: options now, GPU-hours left at their most efficient over their weight, GPUs held."""

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


def split_cluster(decision: Decision, asked: Asked) -> tuple[Split, bool, bool]:
    """Share out a cluster where nothing is saved, or is to be saved, by leaving a GPU idle.

    Beside it: whether some come first by a deadline, and whether all are content (`_are_content`).
    """
    efficient_JC = efficient(asked.jobs, decision.value)
    claims = _claims(decision, asked, efficient_JC)
    found, by_deadline = split(claims, decision.terms.alone_R), bool((claims.turn_J < np.inf).any())
    return found, by_deadline, _are_content(decision, asked, efficient_JC, found.column_J)


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
    """The best column of each job, where that is clear without values; None if it is not for all of them.

    A job that trains in the fastest shape wants no other: it would pause to do no more. A job with but one shape takes
    it.
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
    # Waiting is a column before the others; a job that must run loses more by it than all others could gain.
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
    limits = [int(most) for most in most_R]
    asked = Coupled.from_rows(gain_JC, limits, np.pad(table.row_KJC, BEFORE), np.pad(table.gpus_KJC, BEFORE))
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

    Without this a crowd of short jobs would take so many GPUs, and waste so many, that the long ones never catch up.
    Where more GPUs waste nothing it is not needed: one after the other, jobs that scale perfectly end sooner than side
    by side.
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
    """The same with deadlines to be met: these go before all, also before jobs that have only just got their GPUs."""
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
    """The value of each shape; -inf where it cannot be had. Worked out where it can: most rows are half padding."""
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


def _claims(decision: Decision, asked: Asked, efficient_JC: Bools) -> Claims:
    jobs, terms, knows = asked.jobs, decision.terms, decision.knows
    age_J = terms.now_s - jobs.submit_s_J
    return Claims(
        table=asked.table,
        left_h_J=_left_h(asked, terms.snapshot.ended, knows),
        efficient_JC=efficient_JC,
        sized=knows in SIZED,
        weight_J=jobs.weight_J,
        age_h_J=age_J / SECONDS_PER_H,
        kept_h_J=jobs.kept_s_J / SECONDS_PER_H,
        due_s_J=np.maximum(0.0, age_J - decision.patience_s),
        held_J=np.maximum(jobs.own_J, WAIT),  # also where it is not on the menu
        runs_J=jobs.held_J,
        pinned_J=jobs.pinned_J,
        turn_J=turns(jobs, asked.table, terms.now_s),
    )


def _left_h(asked: Asked, ended: Ended, knows: WorkBelief) -> Floats:
    """GPU-hours left of each job over its weight: as declared, or as believed."""
    if knows is WorkBelief.DECLARED:
        return np.maximum(TRIFLE_H, asked.jobs.gpu_hours_J)
    return believed_left_h(asked, ended, knows)


def _are_content(decision: Decision, asked: Asked, efficient_JC: Bools, column_J: Ints) -> bool:
    """Whether all have what is worth most to them at any time to come: the fastest shape, where nothing is in doubt.

    Their shapes cost no pause, and no other does more work. So another decision would give the same, until an event
    brings or takes something.
    """
    jobs, table = asked.jobs, asked.table
    if len(jobs.states) != decision.count or (column_J == WAIT).any():
        return False
    if not table.last_J.all() or (jobs.purse_J | jobs.core_J).any() or decision.terms.refusals is not None:
        return False
    if table.doubted_J.any():  # a speed that is measured meanwhile is no event
        return False
    most_J = np.where((table.cost_JC < np.inf) & efficient_JC, table.rate_JC, 0.0).max(axis=1)
    return bool((table.rate_JC[np.arange(len(column_J)), column_J] >= most_J).all())


# ---------------------------------------------------------------------- shapes that each may choose, and deadlines


def hurries(jobs: Jobs, value: ValueOfTime) -> Bools:
    """(J,): jobs with a deadline, or in a hurry by the wish of their owner; all, where no money is to be saved."""
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
    """(J,): places of jobs that come first by a deadline that can be met, the earliest 0; inf for all others.

    On one GPU no order meets deadlines that the earliest first does not, whatever comes later (Liu and Layland 1973).
    So a job with a deadline goes before one without, however much time there seems to be. An hour that is given away
    may be the one that a job needs that is not here yet. Cost: O(J C).
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


# ---------------------------------------------------------------------- the going rate of a GPU


def paid_for_gpus(price_R: Floats, row_KJC: Ints, gpus_KJC: Floats) -> Floats:
    """(J, C): job-hours in an hour of each shape."""
    if len(price_R) == 1:
        return np.asarray(price_R[0] * gpus_KJC.sum(axis=0))
    return np.asarray((price_R[row_KJC] * gpus_KJC).sum(axis=0))


def going_rate(hours_JC: Floats, weight_J: Floats, row_KJC: Ints, gpus_KJC: Floats, most_R: Floats) -> Floats:
    """(R,): job-hours per GPU-hour; nothing where there is enough for all.

    `hours_JC` is how long a job takes for a unit of its own work. One price for all pools is found by halving; from
    there those of pools of which more is wanted than there is rise, and others fall. Cost: O(J C), some twenty times.

    >>> hours_JC, gpus_KJC = np.array([[1.0, 0.6, 0.45]] * 2), np.array([[[1.0, 2.0, 4.0]] * 2])
    >>> row_KJC = np.zeros(gpus_KJC.shape, dtype=int)
    >>> prices = [going_rate(hours_JC, np.ones(2), row_KJC, gpus_KJC, np.array([gpus])) for gpus in (8.0, 4.0, 2.0)]
    >>> [round(float(price_R[0]), 1) for price_R in prices]  # 1 + 2 p < (1 + p) / 0.6 up to 2; 4 p: up to 0.25
    [0.0, 0.3, 2.0]
    """
    wishes, rows = _Wanted(hours_JC, weight_J, row_KJC, gpus_KJC), len(most_R)
    if (wishes.by_row(np.full(rows, LEAST)) <= most_R).all():
        return np.zeros(rows)
    low, high, most = LEAST, MOST, float(most_R.sum())
    if wishes.gpus(low) <= most:  # of one pool there is not
        return _apart(np.full(rows, SOME), wishes, most_R)
    while high > low * CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wishes.gpus(middle) <= most else (middle, high)
    price_R = np.full(rows, high)
    return price_R if rows == 1 else _apart(price_R, wishes, most_R)


class _Wanted:
    """GPUs that all jobs together want at a price."""

    def __init__(self, hours_JC: Floats, weight_J: Floats, row_KJC: Ints, gpus_KJC: Floats) -> None:
        possible_JC = np.where(hours_JC < np.inf, hours_JC, 0.0)
        self.job_J, self.row_KJC, self.gpus_KJC = np.arange(len(hours_JC)), row_KJC, gpus_KJC
        self.time_JC, self.held_KJC = weight_J[:, None] * hours_JC, gpus_KJC * possible_JC
        self.gpus_JC, self.held_JC = gpus_KJC.sum(axis=0), self.held_KJC.sum(axis=0)

    def gpus(self, price: float) -> float:
        """Of all pools, where they cost the same."""
        column_J = (self.time_JC + price * self.held_JC).argmin(axis=1)
        return float(self.gpus_JC[self.job_J, column_J].sum())

    def by_row(self, price_R: Floats) -> Floats:
        paid_KJC = price_R[self.row_KJC] * self.held_KJC
        column_J = (self.time_JC + (paid_KJC[0] if len(paid_KJC) == 1 else paid_KJC.sum(axis=0))).argmin(axis=1)
        row_X = self.row_KJC[:, self.job_J, column_J].ravel()
        return np.bincount(row_X, self.gpus_KJC[:, self.job_J, column_J].ravel(), minlength=len(price_R)).astype(
            np.float64, copy=False
        )


def _apart(price_R: Floats, wishes: _Wanted, most_R: Floats) -> Floats:
    for at in range(ROUNDS):
        over_R = (wishes.by_row(price_R) + 1.0) / (most_R + 1.0)
        over_R = np.minimum(np.maximum(over_R, 1.0 / FURTHEST), FURTHEST)
        price_R = np.maximum(LEAST, price_R * over_R ** (DRIFT / (1.0 + 0.1 * at)))
    return price_R
