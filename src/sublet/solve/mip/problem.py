"""Input of the coupled allocation: tables and capacities as for the knapsack, and rules that tie jobs together.

Each choice of a job uses units of one pool, or with `from_rows` of several. Jobs that run now have a current choice;
leaving it is a change, which may cost something, may be limited in number, and may not be a pause if jobs are never
paused.

>>> asked = Coupled.from_tables([[0.0, 3.0, 4.0]] * 2, [3], current=[2, -1], change_cost=0.5, most_changes=0)
>>> asked.gain_JC.tolist(), asked.limit_R.tolist()  # what is left after the cost; three units, no change
([[-0.5, 2.5, 4.0], [0.0, 3.0, 4.0]], [3.0, 0.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sublet.errors import InvalidValue
from sublet.solve.arrays import Bools, Floats, Ints
from sublet.solve.knapsack.problem import gains_from, sizes_from

# J jobs, C choices, P pools, R limits: the pools, and the number of changes if that is limited
NOT_RUNNING = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Coupled:
    """Tables and limits. Make it with `from_tables` or `from_rows`."""

    gain_JC: Floats  # less the cost of changing; -inf: not allowed
    size_JC: Ints
    pool_JC: Ints  # of several, the one of which a choice uses most
    changed_JC: Bools
    use_RJC: Floats  # whole numbers
    limit_R: Floats
    pools: int

    def __repr__(self) -> str:
        jobs, choices = self.gain_JC.shape
        return f"Coupled(jobs={jobs}, choices={choices}, pools={self.pools}, limits={len(self.limit_R)})"

    @classmethod
    def from_tables(
        cls,
        gain_JC: npt.ArrayLike,
        capacity_P: Sequence[int],
        *,
        sizes: npt.ArrayLike | None = None,
        pools: npt.ArrayLike = 0,
        current: npt.ArrayLike = NOT_RUNNING,
        change_cost: npt.ArrayLike = 0.0,
        most_changes: int | None = None,
        may_pause: bool = True,
    ) -> Coupled:
        """From gains by job and choice (-inf where not allowed), and a capacity per pool.

        Precondition: gains and `sizes` as for `best_split`. `pools` is the pool of each column, or of each job and
        column. `current` is the column of each job that runs, `NOT_RUNNING` for the others: to start is no change.
        `change_cost`, one for all or one per job, is subtracted for each change. Without `may_pause` a job that runs
        may not take a choice of size 0. Cost: O(J C R).
        """
        gain_JC = gains_from(gain_JC)
        size_JC = sizes_from(sizes, gain_JC.shape)
        jobs, choices = gain_JC.shape
        limit_P = _whole("capacity_P", capacity_P, (len(capacity_P),), least=0)
        pool_JC = _whole("pools", pools, gain_JC.shape, least=0, most=len(limit_P) - 1)
        current_J = _whole("current", current, (jobs,), least=NOT_RUNNING, most=choices - 1)
        cost_J = np.broadcast_to(np.asarray(change_cost, dtype=np.float64), (jobs,))
        if not ((cost_J >= 0) & np.isfinite(cost_J)).all():
            raise InvalidValue("change_cost", change_cost, "finite, 0 or more")
        runs_J1 = (current_J >= 0)[:, None]
        changed_JC = runs_J1 & (np.arange(choices) != current_J[:, None])
        net_JC = gain_JC - np.where(changed_JC, cost_J[:, None], 0.0)
        if not may_pause:
            held_J1 = runs_J1 & (size_JC[np.arange(jobs), current_J] > 0)[:, None]
            net_JC[held_J1 & (size_JC == 0)] = -np.inf
        use = [np.where(pool_JC == pool, size_JC, 0).astype(np.float64) for pool in range(len(limit_P))]
        limits = limit_P.tolist()
        if most_changes is not None:
            limits += _whole("most_changes", [most_changes], (1,), least=0).tolist()
            use.append(changed_JC.astype(np.float64))
        return cls(
            gain_JC=net_JC,
            size_JC=size_JC,
            pool_JC=pool_JC,
            changed_JC=changed_JC,
            use_RJC=np.stack(use),
            limit_R=np.array(limits, dtype=np.float64),
            pools=len(limit_P),
        )

    @classmethod
    def from_rows(
        cls, gain_JC: npt.ArrayLike, capacity_P: Sequence[int], row_KJC: npt.ArrayLike, units_KJC: npt.ArrayLike
    ) -> Coupled:
        """From gains, and for each choice the few pools that it uses (`row_KJC`) with so many units each. No job runs.

        Precondition: gains are finite, or -inf where not allowed.

        >>> two = Coupled.from_rows([[0.0, 3.0]], [1, 1], [[[0, 0]], [[0, 1]]], [[[0, 1]], [[0, 2]]])
        >>> two.use_RJC[:, 0].tolist()
        [[0.0, 1.0], [0.0, 2.0]]
        """
        gain_JC = np.asarray(gain_JC, dtype=np.float64)
        limit_P = _whole("capacity_P", capacity_P, (len(capacity_P),), least=0)
        rows = len(np.asarray(row_KJC))
        row_KJC = _whole("row_KJC", row_KJC, (rows, *gain_JC.shape), least=0, most=len(limit_P) - 1)
        units_KJC = _whole("units_KJC", units_KJC, (rows, *gain_JC.shape), least=0)
        use_RJC = np.zeros((len(limit_P), *gain_JC.shape))
        each_JC, flat_RX = np.arange(gain_JC.size).reshape(gain_JC.shape), use_RJC.reshape(-1)
        for row_JC, units_JC in zip(row_KJC, units_KJC, strict=True):
            flat_RX[row_JC * gain_JC.size + each_JC] += units_JC
        return cls(
            gain_JC=gain_JC,
            size_JC=units_KJC.sum(axis=0),
            pool_JC=_of_most(row_KJC, units_KJC),
            changed_JC=np.zeros(gain_JC.shape, dtype=np.bool_),
            use_RJC=use_RJC,
            limit_R=limit_P.astype(np.float64),
            pools=len(limit_P),
        )


def _of_most(row_KJC: Ints, units_KJC: Ints) -> Ints:
    """The pool of which each choice uses most; of equals the first."""
    pool_JC: Ints = row_KJC[0]
    most_JC = units_KJC[0]
    for row_JC, units_JC in zip(row_KJC[1:], units_KJC[1:], strict=True):
        more_JC = units_JC > most_JC
        pool_JC, most_JC = np.where(more_JC, row_JC, pool_JC), np.where(more_JC, units_JC, most_JC)
    return pool_JC


def _whole(name: str, given: npt.ArrayLike, shape: tuple[int, ...], *, least: int, most: int | None = None) -> Ints:
    array = np.asarray(given)
    with np.errstate(invalid="ignore"):  # what is no number is not equal to what becomes of it
        whole = array.astype(np.intp, copy=False)
    broken = whole is not array and (whole != array).any()
    if broken or whole.min(initial=least) < least or (most is not None and whole.max(initial=most) > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise InvalidValue(name, given, f"whole numbers, {allowed}")
    try:
        return np.broadcast_to(whole, shape)
    except ValueError:
        raise InvalidValue(name, whole.shape, f"of shape {shape}, or one for all") from None
