"""One 0/1 variable per job and choice, in HiGHS: one choice per job, and all limits kept.

>>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
>>> found = choose(gain_JC, use_RJC, np.array([1.0]))
>>> found.column_J.tolist(), round(found.bound, 9)
([1, 0], 3.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.solve.arrays import Floats, Ints

# J jobs, C choices, R limits, V variables: the choices that are allowed
COLUMNWISE, MINIMISE = 1, 1  # how HiGHS numbers them
SCALE = 1e3  # the largest coefficient of the objective: HiGHS's tolerances are absolute, 1e-7 or so


def new_solver() -> Any:
    """HiGHS, saying nothing. It is imported here, late, because few decisions need it."""
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy has no types
    solver.setOptionValue("output_flag", False)  # noqa: FBT003 - HiGHS's own signature
    return solver


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """The result of HiGHS; None if there is nothing, or nothing in time."""

    column_J: Ints | None
    bound: float  # no choices have a greater total; -inf if none are allowed
    ran_s: float


def choose(
    gain_JC: Floats,
    use_RJC: Floats,
    limit_R: Floats,
    *,
    start: Ints | None = None,
    enough: float = 0.0,
    time_limit_s: float = np.inf,
) -> Chosen:
    """The choices with the greatest total, or with one that is `enough` under a bound at most.

    Precondition: every job has a choice with a finite gain. Cost: branch and bound, in practice a few times the linear
    program; jobs with one choice cost nothing.
    """
    import highspy

    allowed_JC = gain_JC > -np.inf
    column_J = gain_JC.argmax(axis=1)
    free_J = np.flatnonzero(allowed_JC.sum(axis=1) > 1)
    job_J = np.arange(len(gain_JC))
    fixed = allowed_JC.sum(axis=1) == 1
    left_R = limit_R - use_RJC[:, job_J[fixed], column_J[fixed]].sum(axis=1)
    offset = float(gain_JC[job_J, column_J].sum())
    if (left_R < 0).any():
        return Chosen(column_J=None, bound=-np.inf, ran_s=0.0)
    if not len(free_J):
        return Chosen(column_J=column_J, bound=offset, ran_s=0.0)
    row_V, column_V = np.nonzero(allowed_JC[free_J])
    cost_V = gain_JC[free_J, column_J[free_J]][row_V] - gain_JC[free_J[row_V], column_V]
    scale = SCALE / max(float(cost_V.max()), np.finfo(np.float64).tiny * SCALE)
    solver = _solver(cost_V * scale, row_V, use_RJC[:, free_J[row_V], column_V], left_R, jobs=len(free_J))
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", max(enough * scale, 1e-9))
    if np.isfinite(time_limit_s):
        solver.setOptionValue("time_limit", max(time_limit_s, 0.0))
    if start is not None:
        at = np.flatnonzero(start[free_J[row_V]] == column_V).astype(np.int32)
        solver.setSolution(len(at), at, np.ones(len(at)))
    solver.run()
    info = solver.getInfo()
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return Chosen(column_J=None, bound=-np.inf, ran_s=solver.getRunTime())
    bound = offset - max(float(info.mip_dual_bound), 0.0) / scale
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Chosen(column_J=None, bound=bound, ran_s=solver.getRunTime())
    taken_V = np.array(solver.getSolution().col_value) > 0.5  # noqa: PLR2004 - it is 0 or 1 but for rounding
    column_J[free_J[row_V[taken_V]]] = column_V[taken_V]
    return Chosen(column_J=column_J, bound=bound, ran_s=solver.getRunTime())


def excess(allowed_JC: Floats, use_RJC: Floats, limit_R: Floats) -> Floats:
    """By how much each limit is exceeded when all of them together are exceeded as little as can be."""
    row_V, column_V = np.nonzero(allowed_JC > -np.inf)
    solver = _solver(np.zeros(len(row_V)), row_V, use_RJC[:, row_V, column_V], limit_R, jobs=len(allowed_JC))
    for limit in range(len(limit_R)):
        row = np.array([len(allowed_JC) + limit], dtype=np.int32)
        solver.addCol(1.0, 0.0, np.inf, 1, row, np.array([-1.0]))
    solver.run()
    return np.array(solver.getSolution().col_value)[len(row_V) :].round()


def _solver(cost_V: Floats, row_V: Ints, use_RV: Floats, limit_R: Floats, *, jobs: int) -> Any:
    """The program, handed over."""
    count = len(cost_V)
    used_R, variable_R = np.nonzero(use_RV)
    variable = np.concatenate((np.arange(count), variable_R))
    order = np.argsort(variable, kind="stable")
    row = np.concatenate((row_V, jobs + used_R))[order].astype(np.int32)
    value = np.concatenate((np.ones(count), use_RV[used_R, variable_R]))[order]
    begin = np.searchsorted(variable[order], np.arange(count)).astype(np.int32)
    solver = new_solver()
    solver.passModel(
        count,
        jobs + len(limit_R),
        len(value),
        COLUMNWISE,
        MINIMISE,
        0.0,
        cost_V,
        np.zeros(count),
        np.ones(count),
        np.concatenate((np.ones(jobs), np.full(len(limit_R), -np.inf))),
        np.concatenate((np.ones(jobs), limit_R)),
        begin,
        row,
        value,
        np.ones(count, dtype=np.int32),
    )
    return solver
