"""How to split a capacity among jobs, each with a table of what it gains from every size: the best split, with proof.

    maximise  sum of gain_j(c_j)   over one choice c_j per job,   with  sum of size_j(c_j) <= capacity

| method | exact | for |
|---|---|---|
| greedy | concave tables only | picked when they are concave |
| core   | always; or stops within a tolerance that it has proven | picked otherwise |
| price  | no: fills less than all, with a bound | a quick look; what jobs choose at the clearing price |
| rows   | always, at a cost that grows with the capacity | the literal dynamic program; admission one by one |

>>> found = best_split([[0.0, 1.0, 4.0], [0.0, 2.5, 3.0]], 2)
>>> found.width_J.tolist(), found.total, found.gap, found.method
([2, 0], 4.0, 0.0, 'core')
"""

from __future__ import annotations

from typing import SupportsIndex

import numpy.typing as npt

from sublet.errors import InvalidValue
from sublet.solve.knapsack.core import core_split
from sublet.solve.knapsack.greedy import greedy_split, is_concave
from sublet.solve.knapsack.price import price_split
from sublet.solve.knapsack.problem import Method, Problem, Split
from sublet.solve.knapsack.rows import rows_split


def best_split(
    gain_JC: npt.ArrayLike,
    capacity: SupportsIndex,
    *,
    sizes: npt.ArrayLike | None = None,
    tolerance: float = 0.0,
    method: Method | None = None,
) -> Split:
    """The best split of a capacity among jobs; see `Problem.from_tables` for what the tables may be.

    Precondition: gains are finite or -inf (not allowed), sizes (column k has size k unless given) whole numbers of 0 or
    more. `Infeasible` if the jobs at their smallest do not fit. `tolerance` is the gap, relative to the bound, at which
    a search may stop; 0 asks for the best. The method is picked unless given; they differ in cost, not in what is best.

    Cost: O(J C) and a little for the last few jobs; only hard tables make that little grow (see `core_split`).

    >>> best_split([[0.0, 5.0, 6.0], [0.0, 4.0, 9.5]], 4, sizes=[0, 1, 4]).width_J.tolist()
    [0, 4]
    """
    if not 0 <= tolerance < 1:
        raise InvalidValue("tolerance", tolerance, "0 or more, less than 1")
    problem = Problem.from_tables(gain_JC, capacity, sizes=sizes)
    match method:
        case None:
            return greedy_split(problem) if is_concave(problem) else core_split(problem, tolerance=tolerance)
        case "greedy":
            return greedy_split(problem)
        case "core":
            return core_split(problem, tolerance=tolerance)
        case "price":
            return price_split(problem)
        case "rows":
            return rows_split(problem)
        case _:
            raise InvalidValue("method", method, "greedy, core, price, rows or None")
