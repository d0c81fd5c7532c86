"""Choices that keep all limits, near to what prices say: a start for branch and bound, and often near enough.

At the prices of the lowest bound every job has a best choice, and together these use a little more of some limits than
there is. Of the choices that lose least, one after another is taken back, those first that lose least for what they
give back; then whoever can gain by what is left over does.

>>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
>>> near(gain_JC, np.array([[3.0, 0.0], [2.0, 0.0]]), use_RJC, np.array([1.0]), 3.0).tolist()
[1, 0]
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats, Ints

__all__ = ["near"]

# J jobs, C choices, R limits, V choices of all jobs that are tried


def near(gain_JC: Floats, loss_JC: Floats, use_RJC: Floats, limit_R: Floats, most_loss: float) -> Ints | None:
    """A choice per job among those that lose no more than this at the prices; None if none is found that fits.

    Cost: O(V R) a few times for each job that moves.
    """
    column_J: Ints = loss_JC.argmin(axis=1)
    job_V, column_V = np.nonzero(loss_JC <= most_loss)
    gain_V, use_VR = gain_JC[job_V, column_V], use_RJC[:, job_V, column_V].T
    job_J = np.arange(len(gain_JC))
    now_J, own_JR = gain_JC[job_J, column_J], use_RJC[:, job_J, column_J].T.copy()
    left_R = limit_R - own_JR.sum(axis=0)
    for _ in range(2 * len(gain_JC)):
        over = -np.minimum(left_R, 0.0).sum()
        left_VR = left_R + own_JR[job_V] - use_VR
        over_V = -np.minimum(left_VR, 0.0).sum(axis=1)
        more_V = gain_V - now_J[job_V]
        if over > 0:
            back_V = over - over_V
            score_V = np.where(back_V > 0, more_V / np.maximum(back_V, 1.0), -np.inf)
        else:
            score_V = np.where((over_V == 0) & (more_V > 0), more_V, -np.inf)
        best = int(score_V.argmax()) if len(score_V) else 0
        if not len(score_V) or score_V[best] == -np.inf:
            break
        job = job_V[best]
        column_J[job], now_J[job], left_R, own_JR[job] = column_V[best], gain_V[best], left_VR[best], use_VR[best]
    return None if (left_R < 0).any() else column_J
