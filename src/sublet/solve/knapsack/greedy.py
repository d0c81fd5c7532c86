"""The greedy split: unit after unit to the job that gains most by it. Exact when no job gains more by a later unit.

A heap would hand the units out one by one; the units that it would hand out are simply those with the greatest gains,
and these are found at once.

>>> greedy_split(Problem.from_tables([[0.0, 3.0, 5.0], [0.0, 4.0, 4.5]], 3)).width_J.tolist()
[2, 1]
"""

from __future__ import annotations

import numpy as np

from sublet.errors import InvalidValue
from sublet.solve.arrays import Bools, Floats
from sublet.solve.knapsack.problem import Problem, Split

# J jobs, C choices, S = C - 1 steps from one choice to the next


def is_concave(problem: Problem) -> bool:
    """Whether greed is exact: sizes rise by one step throughout, without holes, and no step gains more than the last.

    Cost: O(J C).

    >>> [is_concave(Problem.from_tables([table], 2)) for table in ([0.0, 1.0, 2.0, 2.5], [0.0, 0.0, 1.0])]
    [True, False]
    """
    if not _step(problem):
        return False
    gain_JC = problem.gain_JC
    allowed_JC = gain_JC > -np.inf
    if allowed_JC.all():
        step_JS = np.diff(gain_JC)
    else:
        if (np.diff(allowed_JC.astype(np.int8), axis=1, prepend=0) == 1).sum(axis=1).max(initial=0) > 1:
            return False  # a hole
        step_JS = _steps(gain_JC, allowed_JC, before=np.inf)
    return bool((step_JS[:, 1:] <= step_JS[:, :-1]).all())


def greedy_split(problem: Problem) -> Split:
    """The best split of concave tables.

    Precondition: `is_concave`, else `InvalidValue`. Cost: O(J C), without a sort.
    """
    if not is_concave(problem):
        raise InvalidValue("gain_JC", problem, "concave for the greedy method: steps of one size, never gaining more")
    step = _step(problem)
    allowed_JC = problem.gain_JC > -np.inf
    step_JS = _steps(problem.gain_JC, allowed_JC, before=-np.inf)
    useful_JS = step_JS > 0
    units = (problem.capacity - int(problem.least_J.sum())) // step
    price = 0.0
    if np.count_nonzero(useful_JS) <= units:
        steps_J = useful_JS.sum(axis=1)
    else:
        price = float(-np.partition(-step_JS, units, axis=None)[units])  # of the first unit that is not to be had
        steps_J = (step_JS > price).sum(axis=1)
        equal_J = (step_JS == price).sum(axis=1)
        before_J = np.cumsum(equal_J) - equal_J
        steps_J += np.clip(units - int(steps_J.sum()) - before_J, 0, equal_J)
    return problem.split(allowed_JC.argmax(axis=1) + steps_J, price=price / step, method="greedy")


def _step(problem: Problem) -> int:
    """The difference of adjacent sizes if it is the same everywhere and positive, else 0."""
    size_JC = problem.size_JC[:1] if problem.size_JC.strides[0] == 0 else problem.size_JC
    step_JS = np.diff(size_JC)
    if not step_JS.size:
        return 1  # one choice each
    step = int(step_JS.flat[0])
    return step if step > 0 and bool((step_JS == step).all()) else 0


def _steps(gain_JC: Floats, allowed_JC: Bools, *, before: float) -> Floats:
    """The gain of each step; -inf where a job may not take it, and `before` in front of its first allowed choice."""
    step_JS = np.full((len(gain_JC), gain_JC.shape[1] - 1), -np.inf)
    np.subtract(gain_JC[:, 1:], gain_JC[:, :-1], out=step_JS, where=allowed_JC[:, 1:] & allowed_JC[:, :-1])
    first_J = allowed_JC.argmax(axis=1)
    step_JS[np.arange(step_JS.shape[1]) < first_J[:, None]] = before
    return step_JS
