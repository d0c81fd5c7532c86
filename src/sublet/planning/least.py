"""Money that is kept for the least of each job, where what would suit all best is beyond it.

Money that rows share goes to the cheapest one. A job that cannot do without a dear one, because its owner wants a core
on demand or because it runs nowhere else, would wait for as long as the cheap one can use all there is.
"""

from __future__ import annotations

import numpy as np

from sublet.planning.terms import Terms
from sublet.solve.arrays import Bools, Floats, Ints

__all__ = ["obtainable_with_least"]

# J jobs, C shapes, R rows, K rows that a shape uses


def obtainable_with_least(
    terms: Terms,
    wanted_R: Floats,
    most_R: Floats,
    *,
    row_KJC: Ints,
    gpus_KJC: Floats,
    able_JC: Bools,
    rank_J: Floats,
) -> Floats:
    """GPUs of each row that can be held together if this many are wanted; the least of the first in rank before all.

    `able_JC`: what each job could run on. Nothing is kept unless a job needs a row that is short for want of money:
    one of which `most_R`, what could be held otherwise, is less than is wanted and could be had.
    """
    short_R = most_R < np.minimum(wanted_R, terms.alone_R)
    spared_JC = ~((gpus_KJC > 0) & short_R[row_KJC]).any(axis=0)
    if (able_JC & spared_JC).any(axis=1).all():
        return most_R
    least_JR = _least(terms, row_KJC, gpus_KJC, able_JC)[np.argsort(rank_J, kind="stable")]
    kinds_XR, kind_J = np.unique(least_JR, axis=0, return_inverse=True)
    alone_X = np.array([terms.holds(least_R) for least_R in kinds_XR])
    sum_JR = least_JR[alone_X[kind_J.ravel()]].cumsum(axis=0)
    first, beyond = 0, len(sum_JR) + 1  # the most of them that can be held together
    while beyond - first > 1:
        middle = (first + beyond) // 2
        first, beyond = (middle, beyond) if terms.holds(sum_JR[middle - 1]) else (first, middle)
    return terms.obtainable(wanted_R, sum_JR[first - 1]) if first else most_R


def _least(terms: Terms, row_KJC: Ints, gpus_KJC: Floats, able_JC: Bools) -> Floats:
    """GPUs of each row in the shape of each job whose nodes cost least."""
    size_R = np.array([terms.snapshot.pools[row.pool].gpus_per_node for row in terms.rows], dtype=np.float64)
    usd_KJC = np.ceil(gpus_KJC / size_R[row_KJC]) * (size_R * terms.rent_R)[row_KJC]
    column_J = np.where(able_JC, usd_KJC.sum(axis=0), np.inf).argmin(axis=1)
    job_J = np.arange(len(column_J))
    least_JR = np.zeros((len(column_J), len(terms.rows)))
    for row_JC, gpus_JC in zip(row_KJC, gpus_KJC, strict=True):
        np.add.at(least_JR, (job_J, row_JC[job_J, column_J]), gpus_JC[job_J, column_J])
    return least_JR
