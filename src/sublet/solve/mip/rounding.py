"""Choices that keep all limits, near to what prices say: a start for branch and bound, and often near enough.

At the prices of the lowest bound every job has a best choice, and together these use a little more of some limits than
there is. Choices that lose least are taken back one after another, those first that lose least for what they give back;
then jobs that can gain by the rest do.

>>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
>>> near(np.array([1, 1]), gain_JC, np.array([[3.0, 0.0], [2.0, 0.0]]), use_RJC, np.array([1.0]), 3.0).tolist()
[1, 0]
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats, Ints

__all__ = ["near"]

# J jobs, C choices, R limits, V choices of all jobs that are tried


def near(
    start_J: Ints, gain_JC: Floats, loss_JC: Floats, use_RJC: Floats, limit_R: Floats, most_loss: float
) -> Ints | None:
    """A choice per job, from a start, among those that lose no more than this; None if none is found that fits.

    Cost: O(V R) a few times for each job that moves.
    """
    column_J = start_J.copy()
    job_V, column_V = np.nonzero(loss_JC <= most_loss)
    gain_V, use_RV = gain_JC[job_V, column_V], use_RJC[:, job_V, column_V]
    job_J = np.arange(len(gain_JC))
    own_RJ = use_RJC[:, job_J, column_J]
    left_R1 = (limit_R - own_RJ.sum(axis=1))[:, None]
    more_V, back_RV = gain_V - gain_JC[job_J, column_J][job_V], own_RJ[:, job_V] - use_RV  # by each choice
    first_J = np.searchsorted(job_V, np.arange(len(gain_JC) + 1)).tolist()
    over = -np.minimum(left_R1, 0.0).sum()
    for _ in range(2 * len(gain_JC)):
        over_V = -np.minimum(left_R1 + back_RV, 0.0).sum(axis=0)
        try_V = (over_V < over if over > 0 else (over_V == 0) & (more_V > 0)).nonzero()[0]
        if not len(try_V):
            break
        score_V = more_V[try_V]
        if over > 0:
            score_V /= np.maximum(over - over_V[try_V], 1.0)
        best = int(try_V[score_V.argmax()])
        job, over, left_R1 = job_V[best], over_V[best], left_R1 + back_RV[:, best, None]
        column_J[job], own = column_V[best], slice(first_J[job], first_J[job + 1])  # only its own change by that
        more_V[own], back_RV[:, own] = gain_V[own] - gain_V[best], use_RV[:, best, None] - use_RV[:, own]
    return None if (left_R1 < 0).any() else column_J
