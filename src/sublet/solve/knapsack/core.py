"""From the clearing price to the best split: a dynamic program over the few changes that can still pay.

At the clearing price each choice has a loss: how much worse it is for its job than the job's best. The total of any
split is the bound, less its losses, less price x what it leaves unused. So a choice whose loss exceeds that of the best
split found so far can be forgotten. Jobs are taken in the order of their least loss until the next is too dear: tens of
jobs out of thousands, as a rule.

>>> problem = Problem.from_tables([[0.0, 1.0, 4.0], [0.0, 2.5, 3.0]], 2)
>>> core_split(problem).width_J.tolist()
[2, 0]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from sublet.solve.arrays import Floats, Ints
from sublet.solve.knapsack.price import Clearing, clearing
from sublet.solve.knapsack.problem import ROUNDING, Problem, Split

# J jobs, C choices, O changes that may pay (of job, by so many units, at a loss), W units more than the settled split
Step = tuple[int, Floats, list[tuple[int, float, int]]]  # first of W, least loss before, the changes of one job


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Changes:
    """Ways to leave the settled split, those of a job together, jobs in the order of the least they can cost."""

    job_O: Ints
    column_O: Ints
    more_O: Ints  # units; not 0
    loss_O: Floats
    least_O: Floats  # what a split with this change loses at least

    def __len__(self) -> int:
        return len(self.job_O)

    def take(self, of: Ints | slice) -> _Changes:
        return _Changes(
            job_O=self.job_O[of],
            column_O=self.column_O[of],
            more_O=self.more_O[of],
            loss_O=self.loss_O[of],
            least_O=self.least_O[of],
        )


def core_split(problem: Problem, *, tolerance: float = 0.0) -> Split:
    """The best split, or one that is proven to be within `tolerance` (relative to the bound) of the best.

    Precondition: none. Cost: O(J C), and the dynamic program over the changes that may pay. These are few where gains
    differ; where many jobs are alike, the sizes bound them (see `_thin_changes`), not the number of jobs. On
    tables made to be hard it costs about as much as the dynamic program over everything.
    """
    settled = clearing(problem)
    column_J, lost = settled.column_J, settled.price * settled.slack
    rounding = ROUNDING * (abs(settled.bound) + settled.price * problem.capacity)
    enough = max(tolerance * abs(settled.bound), rounding)
    bound = None if lost <= rounding else settled.bound
    if lost > enough:
        column_J, bound = _fill_split(problem, settled, enough=enough, rounding=rounding)
    return problem.split(column_J, price=settled.price, method="core", bound=bound)


def _fill_split(problem: Problem, settled: Clearing, *, enough: float, rounding: float) -> tuple[Ints, float | None]:
    """The settled split with the changes that make it lose the least; or no more than enough, and then a bound."""
    price = settled.price
    changes, slack, lost, first = _worth_trying(problem, settled)
    column_J = settled.column_J.copy()
    if first is not None:
        column_J[first[0]] = first[1]
    begins = [*np.flatnonzero(np.diff(changes.job_O, prepend=-1)).tolist(), len(changes)]
    low, loss_W = 0, np.zeros(1)
    steps: list[Step] = []
    best: tuple[int, int] | None = None  # after so many steps, so many units more
    for begin, end in itertools.pairwise(begins):
        if lost <= enough or changes.least_O[begin] >= lost - rounding:
            break
        low, loss_W = _prune_ends(low, loss_W, lost)
        ways = [
            (more, loss, column)
            for more, loss, column, least in zip(
                changes.more_O[begin:end].tolist(),
                changes.loss_O[begin:end].tolist(),
                changes.column_O[begin:end].tolist(),
                changes.least_O[begin:end].tolist(),
                strict=True,
            )
            if least < lost
        ]
        steps.append((low, loss_W, ways))
        low, loss_W = _with_job(low, loss_W, ways)
        fits = loss_W[: slack - low + 1]  # to stay is among them: 0 units more, and nothing lost
        ends_W = fits + price * np.arange(slack - low, slack - low - len(fits), -1)
        at = int(ends_W.argmin())
        if ends_W[at] < lost:
            lost, best = float(ends_W[at]), (len(steps), low + at)
    if best is not None:
        column_J = settled.column_J.copy()
        _go_back(column_J, steps[: best[0]], [int(changes.job_O[begin]) for begin in begins[:-1]], best[1])
    proven = lost > enough or lost <= rounding
    return column_J, None if proven else settled.bound - price * (settled.slack - slack)


def _with_job(low: int, loss_W: Floats, ways: list[tuple[int, float, int]]) -> tuple[int, Floats]:
    """The least loss by units when one more job may change in these ways, or stay."""
    down = min(0, *(more for more, _, _ in ways))
    up = max(0, *(more for more, _, _ in ways))
    count = len(loss_W)
    out_W = np.full(count + up - down, np.inf)
    out_W[-down : count - down] = loss_W
    for more, loss, _ in ways:
        part_W = out_W[more - down : more - down + count]
        np.minimum(part_W, loss_W + loss, out=part_W)
    return low + down, out_W


def _prune_ends(low: int, loss_W: Floats, lost: float) -> tuple[int, Floats]:
    """Without the ends that lose too much already; something loses less, for to stay loses nothing."""
    keep = np.flatnonzero(loss_W < lost)
    return low + int(keep[0]), loss_W[keep[0] : keep[-1] + 1]


def _go_back(column_J: Ints, steps: list[Step], jobs: list[int], more: int) -> None:
    """Write the changes along which the least loss at so many units came about."""
    for (low, loss_W, ways), job in zip(reversed(steps), reversed(jobs[: len(steps)]), strict=True):
        best, came, chosen = np.inf, more, None
        for units, loss, column in [(0, 0.0, None), *ways]:
            at = more - units - low
            if 0 <= at < len(loss_W) and loss_W[at] + loss < best:
                best, came, chosen = float(loss_W[at]) + loss, more - units, column
        more = came
        if chosen is not None:
            column_J[job] = chosen


def _worth_trying(problem: Problem, settled: Clearing) -> tuple[_Changes, int, float, tuple[int, int] | None]:
    """The changes that may pay, the units to fill, what the best single change loses, and that one as (job, column)."""
    price, slack, gain_JC, size_JC = settled.price, settled.slack, problem.gain_JC, problem.size_JC
    job_J = np.arange(len(problem))
    worth_JC = gain_JC - price * size_JC
    loss_JC = np.maximum(worth_JC[job_J, settled.column_J][:, None] - worth_JC, 0.0)
    lost = price * slack
    may_pay_JC = loss_JC < lost
    if bool((size_JC[:, 1:] >= size_JC[:, :-1]).all()):  # then more units for no more gain are easily seen
        may_pay_JC[:, 1:] &= gain_JC[:, 1:] > np.maximum.accumulate(gain_JC[:, :-1], axis=1)
    job_O, column_O = np.nonzero(may_pay_JC)
    more_O = size_JC[job_O, column_O] - size_JC[job_O, settled.column_J[job_O]]
    moves = more_O != 0
    job_O, column_O, more_O = job_O[moves], column_O[moves], more_O[moves]
    loss_O = loss_JC[job_O, column_O]
    if len(more_O):  # where all changes are by multiples of 8, the slack is filled by 8 or not at all
        waste = slack % int(np.gcd.reduce(more_O))
        slack, lost = slack - waste, lost - price * waste
    alone_O = np.where(more_O <= slack, loss_O + price * (slack - more_O), np.inf)
    first: tuple[int, int] | None = None
    if len(alone_O):
        at = int(alone_O.argmin())
        if alone_O[at] < lost:
            lost, first = float(alone_O[at]), (int(job_O[at]), int(column_O[at]))
    changes = _Changes(job_O=job_O, column_O=column_O, more_O=more_O, loss_O=loss_O, least_O=loss_O)
    for _ in range(2):  # fewer changes make the rest dearer, which leaves fewer still
        changes = _dearer(changes, price, slack, lost)
    changes = _thin_changes(changes, slack)
    order_O = np.argsort(changes.least_O, kind="stable")
    rank_J = np.full(len(problem), len(changes))
    rank_J[changes.job_O[order_O][::-1]] = np.arange(len(changes))[::-1]
    return changes.take(np.lexsort((changes.least_O, rank_J[changes.job_O]))), slack, lost, first


def _dearer(changes: _Changes, price: float, slack: int, lost: float) -> _Changes:
    """Those left when each change must pay, too, for filling or freeing the units that it leaves or lacks."""
    more_O, loss_O = changes.more_O, changes.loss_O
    rate_O = loss_O / np.abs(more_O)
    fill = min(price, rate_O[more_O > 0].min(initial=np.inf))  # of a unit, at least
    free = min(lost, rate_O[more_O < 0].min(initial=np.inf))
    lacks_O = more_O - slack
    least_O = loss_O + np.maximum(free * lacks_O, -fill * lacks_O)  # one of them is above 0, or neither
    keep = np.flatnonzero(least_O < lost)
    kept = changes.take(keep)
    return _Changes(
        job_O=kept.job_O,
        column_O=kept.column_O,
        more_O=kept.more_O,
        loss_O=kept.loss_O,
        least_O=least_O[keep],
    )


def _thin_changes(changes: _Changes, slack: int) -> _Changes:
    """Only as many changes of each size as a best split can contain, the cheapest.

    Count unused units as changes by 1, so that all changes add up to the slack. They can be put in an order in which
    their running sum stays above -(greatest decrease) and at or under (greatest increase, or the slack if that is
    more). Were there more changes than such sums, two sums would be equal, and the changes between them could be
    undone: they add no units, and no change gains. So some best split has at most so many changes, and where it has a
    dear one, a job that is free to change by as much for less takes its place.
    """
    most = int(changes.more_O.max(initial=slack) - changes.more_O.min(initial=0))
    if len(changes) <= most:
        return changes
    order_O = np.lexsort((changes.loss_O, changes.job_O, changes.more_O))
    job_O, more_O = changes.job_O[order_O], changes.more_O[order_O]
    again_O = np.zeros(len(order_O), dtype=np.bool_)  # the same size twice in a job
    again_O[1:] = (job_O[1:] == job_O[:-1]) & (more_O[1:] == more_O[:-1])
    order_O = order_O[~again_O]
    order_O = order_O[np.lexsort((changes.loss_O[order_O], changes.more_O[order_O]))]
    sorted_O = changes.more_O[order_O]
    rank_O = np.arange(len(order_O)) - np.searchsorted(sorted_O, sorted_O)
    return changes.take(np.sort(order_O[rank_O < most]))
