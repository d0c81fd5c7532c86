"""The clearing price of a capacity: at this price per unit, what jobs choose for themselves just fills it.

    bound(price) = price x capacity + sum over jobs of the greatest gain_j(c) - price x size_j(c)

No split is better than the bound at any price. The clearing price has the lowest bound; there, a job or a few are in
doubt between two choices, and all others are settled.

>>> from sublet.solve.knapsack.problem import Problem
>>> found = clearing(Problem.from_tables([[0.0, 1.0, 4.0], [0.0, 2.5, 3.0]], 2))
>>> found.price, found.bound, found.column_J.tolist(), found.slack
(2.0, 4.5, [0, 1], 1)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.solve.arrays import Floats, Ints
from sublet.solve.knapsack.problem import ROUNDING, Problem, Split

# J jobs, C choices, S steps from a choice to the next, A jobs still in doubt
NEAR = 0.02  # relative: so far about the guess the price is looked for first
ENOUGH = 10_000  # choices to guess by


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clearing:
    """A price, and a split of settled jobs that leaves less room than the next job in doubt would take."""

    price: float
    bound: float
    column_J: Ints
    slack: int  # capacity not used


def price_split(problem: Problem) -> Split:
    """The choice of each job at the clearing price, without filling the rest.

    Precondition: none; the gap is at most price x slack, less than one job's step. Cost: O(J C log C) or so.

    >>> price_split(Problem.from_tables([[0.0, 1.0, 4.0], [0.0, 2.5, 3.0]], 2)).width_J.tolist()
    [0, 1]
    """
    found = clearing(problem)
    exact = found.price * found.slack == 0
    return problem.split(found.column_J, price=found.price, method="price", bound=None if exact else found.bound)


def clearing(problem: Problem) -> Clearing:
    """The price with the lowest bound.

    Two splits enclose it, one too large for the capacity and one not, to begin with those at prices about a guess. The
    price at which they are equally good is tried: it gives a better one of either, or there is none and this is the
    price. Jobs that choose alike in both are settled for good, so that all tries together cost little more than the
    first few: O(J C), about three tries where the guess is near, else ten.
    """
    gain_JC, size_JC, capacity = problem.gain_JC, problem.size_JC, problem.capacity
    job_J = np.arange(len(problem))
    large_J = gain_JC.argmax(axis=1)
    if int(size_JC[job_J, large_J].sum()) <= capacity:
        return _clearing_at(problem, 0.0, large_J)
    small_J = np.where(size_JC == problem.least_J[:, None], gain_JC, -np.inf).argmax(axis=1)
    guess = _guess(problem)
    for price in (guess * (1.0 - NEAR), guess * (1.0 + NEAR)):
        tried_J = (gain_JC - price * size_JC).argmax(axis=1)
        if int(size_JC[job_J, tried_J].sum()) > capacity:
            large_J = tried_J
        else:
            small_J = tried_J
            break
    doubt_A = np.flatnonzero(large_J != small_J)
    large_A, small_A = large_J[doubt_A], small_J[doubt_A]
    gain_AC, size_AC = gain_JC[doubt_A], size_JC[doubt_A]
    size_J = size_JC[job_J, small_J]
    left = capacity - int(size_J.sum()) + int(size_J[doubt_A].sum())
    while True:
        job_A = np.arange(len(doubt_A))
        more_A = size_AC[job_A, large_A] - size_AC[job_A, small_A]
        better_A = gain_AC[job_A, large_A] - gain_AC[job_A, small_A]
        price = max(float(better_A.sum() / more_A.sum()), 0.0)
        worth_AC = gain_AC - price * size_AC
        tried_A = worth_AC.argmax(axis=1)
        worth_A = worth_AC[job_A, tried_A]
        improved = float((worth_A - worth_AC[job_A, small_A]).sum())
        used = int(size_AC[job_A, tried_A].sum())
        if improved <= ROUNDING * float(np.abs(worth_A).sum()):
            break
        if used > left:
            if used >= int(size_AC[job_A, large_A].sum()):
                break  # better by a rounding error only
            large_A = tried_A
        else:
            if used <= int(size_AC[job_A, small_A].sum()):
                break
            small_A = tried_A
        large_J[doubt_A], small_J[doubt_A] = large_A, small_A
        keep_A = large_A != small_A
        left -= int(size_AC[job_A, small_A][~keep_A].sum())
        doubt_A, large_A, small_A = doubt_A[keep_A], large_A[keep_A], small_A[keep_A]
        gain_AC, size_AC = gain_AC[keep_A], size_AC[keep_A]
    # At this price both choices of a job in doubt are equally good, so as many as fit take the larger one.
    room = left - int(size_AC[np.arange(len(doubt_A)), small_A].sum())
    order_A = np.argsort(-more_A, kind="stable")  # large steps first: a small one is likelier to fit what they leave
    order_A = order_A[: np.count_nonzero(more_A > 0)]
    fits_A = order_A[: int(np.searchsorted(np.cumsum(more_A[order_A]), room, side="right"))]
    small_J[doubt_A[fits_A]] = large_A[fits_A]
    return _clearing_at(problem, price, small_J)


def _guess(problem: Problem) -> float:
    """The clearing price if no step of a table gained more per unit than the one before; by some jobs, if many."""
    every = 1 + problem.gain_JC.size // ENOUGH
    gain_JC, size_JC = problem.gain_JC[::every], problem.size_JC[::every]
    units_JS = size_JC[:, 1:] - size_JC[:, :-1]
    with np.errstate(divide="ignore", invalid="ignore"):  # what is not allowed, or no larger, is no step
        worth_JS = (gain_JC[:, 1:] - gain_JC[:, :-1]) / units_JS
    step_JS = (worth_JS > 0.0) & (worth_JS < np.inf) & (units_JS > 0)
    worth_S, units_S = worth_JS[step_JS], units_JS[step_JS]
    order_S = worth_S.argsort()[::-1]
    room = (problem.capacity - int(problem.least_J.sum())) / every
    at = int(units_S[order_S].cumsum().searchsorted(room, side="right"))
    return float(worth_S[order_S[at]]) if at < len(order_S) else 0.0


def _clearing_at(problem: Problem, price: float, column_J: Ints) -> Clearing:
    used = int(problem.size_JC[np.arange(len(problem)), column_J].sum())
    best_J: Floats = (problem.gain_JC - price * problem.size_JC).max(axis=1)
    bound = price * problem.capacity + float(best_J.sum())
    return Clearing(price=price, bound=bound, column_J=column_J, slack=problem.capacity - used)
