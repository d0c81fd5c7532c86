"""Choices that keep all limits, made better two at a time: one job gives up what another makes more of.

Rounding job by job stops where no job by itself can gain, and mostly two together still can: the limits are full, and
the gain of one would cost the other little.

>>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
>>> improved(np.array([0, 1]), gain_JC, np.array([[3.0, 0.0], [2.0, 0.0]]), use_RJC, np.array([1.0]), 3.0).tolist()
[1, 0]
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats, Ints

__all__ = ["improved"]

MOST = 100  # choices beside those that they have: those that lose least
TINY = 1e-9  # relative: what is more than a rounding error

# J jobs, C choices, R limits, V choices of all jobs that are paired, their own among them; P x Q pairs of these


def improved(
    column_J: Ints, gain_JC: Floats, loss_JC: Floats, use_RJC: Floats, limit_R: Floats, most_loss: float
) -> Ints:
    """No worse than these, and such that no two of the choices that lose least at the prices would be better.

    Precondition: they keep all limits. Cost: O(V V R) for each pair that is changed.
    """
    job_J = np.arange(len(column_J))
    column_J, loss_JC = column_J.copy(), loss_JC.copy()
    loss_JC[job_J, column_J] = 0.0  # with what a job has already, another moves alone
    job_V, column_V = np.nonzero(loss_JC <= most_loss)
    most = MOST + len(job_J)
    if len(job_V) > most:
        least = np.argpartition(loss_JC[job_V, column_V], most)[:most]
        job_V, column_V = job_V[least], column_V[least]
    gain_V, use_RV = gain_JC[job_V, column_V], use_RJC[:, job_V, column_V]
    for _ in range(2 * len(job_J)):
        own_RJ = use_RJC[:, job_J, column_J]
        left_R = limit_R - own_RJ.sum(axis=1)
        more_V, needs_RV = gain_V - gain_JC[job_J, column_J][job_V], use_RV - own_RJ[:, job_V]
        # One of a pair gains, and the other loses less than the most that any can gain.
        one_P, other_Q = (more_V > 0).nonzero()[0], (more_V > -more_V.max()).nonzero()[0]
        fits_PQ = job_V[one_P, None] != job_V[other_Q]
        for needs_V, left in zip(needs_RV, left_R.tolist(), strict=True):
            fits_PQ &= needs_V[one_P, None] <= left - needs_V[other_Q]
        more_PQ = np.where(fits_PQ, more_V[one_P, None] + more_V[other_Q], 0.0)
        if not more_PQ.max(initial=0.0) > TINY * abs(float(gain_JC[job_J, column_J].sum())):
            break
        one, other = divmod(int(more_PQ.argmax()), len(other_Q))
        pair = [one_P[one], other_Q[other]]
        column_J[job_V[pair]] = column_V[pair]
    return column_J
