"""Input and output of the knapsack solvers: jobs with a table of gains each, and one capacity.

    maximise  sum of gain_j(c_j)   over one choice c_j per job,   with  sum of size_j(c_j) <= capacity

Tables may be of any form: gains that jump, fall or are negative, sizes with holes, jobs that must run.

>>> problem = Problem.from_tables([[0.0, 1.0, 1.5], [-np.inf, 2.0, 2.5]], 3)  # the second job must run
>>> problem.least_J.tolist(), problem
([0, 1], Problem(jobs=2, choices=3, capacity=3))
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from sublet.errors import Infeasible, InvalidValue
from sublet.solve.arrays import Floats, Ints

# J jobs, C choices of each
Method = Literal["greedy", "price", "core", "rows"]
ROUNDING = 1e-13  # of all gains added up: what the order of the additions decides


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """One choice per job, and how good it can at most be."""

    column_J: Ints  # which column of the table
    width_J: Ints  # its size
    total: float
    bound: float  # no split has a greater total
    price: float  # of a unit of capacity: what each job pays when it chooses for itself; 0 when there is room for all
    method: Method

    @property
    def gap(self) -> float:
        """How far the total may be from the best; 0 when it is the best."""
        return self.bound - self.total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Problem:
    """Tables and a capacity that fit together, so that a split exists. Make it with `from_tables`."""

    gain_JC: Floats  # -inf: not allowed
    size_JC: Ints
    capacity: int
    least_J: Ints  # the smallest size that each job may have

    def __repr__(self) -> str:
        jobs, choices = self.gain_JC.shape
        return f"Problem(jobs={jobs}, choices={choices}, capacity={self.capacity})"

    def __len__(self) -> int:
        return len(self.gain_JC)

    @classmethod
    def from_tables(
        cls, gain_JC: npt.ArrayLike, capacity: SupportsIndex, *, sizes: npt.ArrayLike | None = None
    ) -> Problem:
        """From gains by job and choice, -inf where not allowed.

        Precondition: gains are finite or -inf, and `sizes`, one per column or one per job and column, are whole numbers
        of 0 or more; unless given, column k has size k. A job that may not be left out has -inf at size 0. Tables are
        not copied: they must stay as they are while the problem is in use. `Infeasible` if a job has no choice, or all
        jobs at their smallest exceed the capacity. Cost: O(J C).
        """
        gain_JC = gains_from(gain_JC)
        capacity = _capacity(capacity)
        size_JC = sizes_from(sizes, gain_JC.shape)
        allowed_JC = gain_JC > -np.inf
        if allowed_JC.all():
            least_J = size_JC.min(axis=1)
        else:
            stuck = np.flatnonzero(~allowed_JC.any(axis=1))
            if len(stuck):
                raise Infeasible(
                    f"job {stuck[0]} has no choice",
                    binding="finite gains in its row",
                    needed=1,
                    available=0,
                    hint="allow it a size, 0 if it may wait",
                )
            least_J = np.where(allowed_JC, size_JC, np.iinfo(np.intp).max).min(axis=1)
        needed = int(least_J.sum())
        if needed > capacity:
            raise Infeasible(
                f"{len(gain_JC)} jobs at their smallest do not fit",
                binding="the capacity",
                needed=needed,
                available=capacity,
                hint="let some jobs wait: a finite gain at size 0",
            )
        room_J = least_J + (capacity - needed)  # what is left for a job when all others are at their smallest
        too_large_JC = size_JC > room_J[:, None]
        if too_large_JC.any():
            gain_JC = np.where(too_large_JC, -np.inf, gain_JC)
        return cls(gain_JC=gain_JC, size_JC=size_JC, capacity=capacity, least_J=least_J)

    def split(self, column_J: Ints, *, price: float, method: Method, bound: float | None = None) -> Split:
        """These choices as an answer; exact unless a bound is given."""
        job_J = np.arange(len(self))
        total = float(self.gain_JC[job_J, column_J].sum())
        return Split(
            column_J=column_J,
            width_J=self.size_JC[job_J, column_J],
            total=total,
            bound=total if bound is None else max(bound, total),
            price=price,
            method=method,
        )


def gains_from(given: npt.ArrayLike) -> Floats:
    """A table of gains that are finite, or -inf where not allowed."""
    gain_JC = np.asarray(given, dtype=np.float64)
    if gain_JC.ndim != 2 or gain_JC.shape[1] == 0:  # noqa: PLR2004 - jobs by choices
        raise InvalidValue("gain_JC", gain_JC.shape, "a table of jobs by choices")
    if not (gain_JC < np.inf).all():  # so is NaN
        job, choice = (int(found[0]) for found in np.nonzero(~(gain_JC < np.inf)))
        raise InvalidValue(f"gain_JC[{job}, {choice}]", gain_JC[job, choice].item(), "finite, or -inf if not allowed")
    return gain_JC


def _capacity(given: SupportsIndex) -> int:
    try:
        capacity = operator.index(given)
    except TypeError:
        raise InvalidValue("capacity", given, "a whole number") from None
    if capacity < 0:
        raise InvalidValue("capacity", capacity, "0 or more")
    return capacity


def sizes_from(given: npt.ArrayLike | None, shape: tuple[int, ...]) -> Ints:
    """A size per job and choice; unless given, column k has size k."""
    if given is None:
        return np.broadcast_to(np.arange(shape[-1]), shape)
    array = np.asarray(given)
    with np.errstate(invalid="ignore"):  # what is no number is not equal to what becomes of it
        size = array.astype(np.intp, copy=False)
    if (size is not array and (size != array).any()) or size.min(initial=0) < 0:
        raise InvalidValue("sizes", given, "whole numbers, 0 or more")
    try:
        return np.broadcast_to(size, shape)
    except ValueError:
        raise InvalidValue("sizes", size.shape, f"one per column, {shape[-1]}, or of shape {shape}") from None
