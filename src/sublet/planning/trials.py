"""Whether a shape of which little is known is worth a try: what may be gained there, and what it costs to come back.

A job that goes to a shape learns how fast it is, and may return. So it pays what is believed, less what returning saves
where that is wrong:

    cost of trying c = E[X]  -  (part of the work after the trial) x E[(X - back)+]
    X    = cost on c to the end, getting there included: normal, with the error of the speed that a trial takes away
    back = least cost that is known  +  the way there and back  +  what keeps it on c: speeds may still be wrong by that

It is tried if that is less than all that is known, staying included. No second shape is tried before the speed on
the first is known, and what was tried is known. So there are at most as many trials as shapes, and a trial costs at
most `back` less the least that is known, and the time until it is known. Near its end a job has nothing to gain that
pays for the way.
"""

from __future__ import annotations

import math

import numpy as np

from sublet.perf.learned import MEASURED_DOUBT
from sublet.solve.arrays import Floats, Ints

__all__ = ["LEARNS_H", "trial_costs"]

LEARNS_H = 1.0 / 60.0  # until a speed is known: reports come once a second, and the first of a width do not count

# C shapes


def trial_costs(
    cost_C: Floats, way_C: Floats, hours_C: Floats, doubt_C: Floats, belief_C: Ints, held: int
) -> Floats | None:
    """The cost of trying each shape that is worth it; infinite for the others. None if there is none.

    `cost_C` is to the end as speeds are believed; of that `way_C` is for getting there. `held` is known by now.
    """
    known = float(doubt_C[held])
    if known > MEASURED_DOUBT or not math.isfinite(cost_C[held]):  # it is on trial itself
        return None
    open_C = (doubt_C > known) & np.isfinite(cost_C)
    if not open_C.any():
        return None
    least = float(cost_C[doubt_C <= known].min())
    cost, way = cost_C[open_C], way_C[open_C]
    error = np.sqrt(doubt_C[open_C] ** 2 - known**2) * cost
    same = belief_C[open_C] == belief_C[held]  # as many GPUs of the same kind, at another batch: errors are in both
    back = least + 2.0 * way + known * np.where(same, np.abs(cost - least), np.hypot(least, cost))
    after = np.maximum(0.0, 1.0 - LEARNS_H / np.maximum(hours_C[open_C], LEARNS_H))
    found_C = np.full(len(cost_C), np.inf)
    found_C[open_C] = cost - after * _excess(cost - back, error)
    return np.where(found_C < least, found_C, np.inf) if (found_C < least).any() else None


def _excess(mean: Floats, error: Floats) -> Floats:
    """E[Y+] of a normal Y."""
    z = mean / error
    above = np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in z.tolist()])
    return np.asarray(mean * above + error * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
