"""The dynamic program, a row per job: the best total of the jobs so far, for every capacity. Exact for any table.

Appending a job costs one row, so that admission first come first served asks for each job whether it still fits, and
keeps the row if it does.

>>> rows = Rows.of(3)
>>> for table in ([0.0, 1.0, 1.5], [-np.inf, 2.0, 2.5]):
...     rows = rows.with_job(table)
>>> rows.total(), rows.total(1), rows.best().width_J.tolist()
(3.5, 2.0, [2, 1])
>>> rows.with_job([-np.inf, -np.inf, -np.inf, 9.0]).total()  # three units for the third, one for the second
-inf
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints
from sublet.solve.knapsack.price import clearing
from sublet.solve.knapsack.problem import Problem, Split, sizes_from

# J jobs, C choices, K1 capacities: 0 to the greatest
NEVER = np.iinfo(np.intp).max  # units


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Rows:
    """The table after some jobs. Make an empty one with `of`; each `with_job` gives a new one, which shares the old."""

    best_K1: Floats  # the best total within each capacity, -inf if the jobs do not fit
    jobs: int
    before: Rows | None
    gain_C: Floats  # of the last job
    size_C: Ints

    def __repr__(self) -> str:
        return f"Rows(jobs={self.jobs}, capacity={len(self.best_K1) - 1})"

    @classmethod
    def of(cls, capacity: int) -> Rows:
        """No jobs yet; they will share this capacity or any smaller one."""
        if capacity < 0:
            raise InvalidValue("capacity", capacity, "0 or more")
        nothing = np.zeros(0)
        return cls(best_K1=np.zeros(capacity + 1), jobs=0, before=None, gain_C=nothing, size_C=nothing.astype(np.intp))

    def with_job(self, gain_C: npt.ArrayLike, sizes: npt.ArrayLike | None = None) -> Rows:
        """One job more.

        Precondition: as for `Problem.from_tables`, except that the job need not fit. Cost: O(C K).
        """
        gain_C = np.array(gain_C, dtype=np.float64)
        if gain_C.ndim != 1 or not (gain_C < np.inf).all():
            raise InvalidValue("gain_C", gain_C, "one gain per choice, finite or -inf if not allowed")
        return self._append_row(gain_C, sizes_from(sizes, gain_C.shape).copy())

    def total(self, capacity: int | None = None) -> float:
        """The best total within a capacity, the greatest unless given; -inf if the jobs do not fit."""
        return float(self.best_K1[-1 if capacity is None else self._check_capacity(capacity)])

    def best(self, capacity: int | None = None) -> Split:
        """The best split of a capacity, the greatest unless given; `Infeasible` if the jobs do not fit.

        Cost: O(J C).
        """
        capacity = len(self.best_K1) - 1 if capacity is None else self._check_capacity(capacity)
        if self.best_K1[capacity] == -np.inf:
            least = [row.size_C[row.gain_C > -np.inf].min(initial=NEVER) for row in self._from_last() if row.before]
            needed = float(sum(least)) if max(least) < NEVER else np.inf
            raise Infeasible(
                f"{self.jobs} jobs at their smallest do not fit",
                binding="the capacity",
                needed=needed,
                available=capacity,
                hint="let some jobs wait: a finite gain at size 0",
            )
        column_J, at = np.empty(self.jobs, dtype=np.intp), capacity
        for row in self._from_last():
            if row.before is not None:
                left_C = at - row.size_C
                came_C = np.where(left_C >= 0, row.gain_C + row.before.best_K1[np.maximum(left_C, 0)], -np.inf)
                column_J[row.jobs - 1] = came_C.argmax()
                at = int(left_C[column_J[row.jobs - 1]])
        problem = self._problem(capacity)
        return problem.split(column_J, price=clearing(problem).price, method="rows")

    def _append_row(self, gain_C: Floats, size_C: Ints) -> Rows:
        count = len(self.best_K1)
        best_K1, sum_K1 = np.full(count, -np.inf), np.empty(count)
        for gain, size in zip(gain_C.tolist(), size_C.tolist(), strict=True):
            if gain > -np.inf and size < count:
                part, sums = best_K1[size:], sum_K1[size:]
                np.add(self.best_K1[: count - size], gain, out=sums)
                np.maximum(part, sums, out=part)
        return Rows(best_K1=best_K1, jobs=self.jobs + 1, before=self, gain_C=gain_C, size_C=size_C)

    def _from_last(self) -> Iterator[Rows]:
        row: Rows | None = self
        while row is not None:
            yield row
            row = row.before

    def _problem(self, capacity: int) -> Problem:
        """All jobs as tables of the same number of columns."""
        rows = [row for row in self._from_last() if row.before is not None][::-1]
        choices = max((len(row.gain_C) for row in rows), default=1)
        gain_JC, size_JC = np.full((len(rows), choices), -np.inf), np.zeros((len(rows), choices), dtype=np.intp)
        for job, row in enumerate(rows):
            gain_JC[job, : len(row.gain_C)], size_JC[job, : len(row.gain_C)] = row.gain_C, row.size_C
        return Problem.from_tables(gain_JC, capacity, sizes=size_JC)

    def _check_capacity(self, capacity: int) -> int:
        if not 0 <= capacity < len(self.best_K1):
            raise InvalidValue("capacity", capacity, f"0 to {len(self.best_K1) - 1}")
        return capacity


def rows_split(problem: Problem) -> Split:
    """The best split by the dynamic program over all jobs.

    Precondition: none. Cost: O(J C K) time, O(J K) memory.

    >>> rows_split(Problem.from_tables([[0.0, 1.0, 4.0], [0.0, 2.5, 3.0]], 2)).width_J.tolist()
    [2, 0]
    """
    rows = Rows.of(problem.capacity)
    for gain_C, size_C in zip(problem.gain_JC, problem.size_JC, strict=True):
        rows = rows._append_row(gain_C, size_C)  # noqa: SLF001 - these are checked already
    return rows.best()
