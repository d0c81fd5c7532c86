"""Prices for several limits, found by walking downhill: a bound that is near the lowest after a few steps.

The bound of `prices.py`, without its linear programs, which take longer than all else where jobs are few. Each step
goes against the slope, as far as would reach the target (Polyak's step). The target is a value that is known to be
reachable, or a share below the best bound so far, which is halved whenever two steps in a row bring nothing.

>>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]] * 2)
>>> 3.0 <= descend(gain_JC, use_RJC, np.array([1.0, 2.0]), reached=3.0, near=0.01).bound <= 3.03
True
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats
from sublet.solve.mip.prices import Bound, bound_at

__all__ = ["descend"]

# J jobs, C choices, R limits
STEPS = 30
HOPED = 0.1  # of the bound, at first
FRUITLESS = 2  # steps before less is hoped for


def descend(gain_JC: Floats, use_RJC: Floats, limit_R: Floats, *, reached: float, near: float) -> Bound:
    """The best of some tens of prices; none after the bound is within `near` (relative) of what is `reached`.

    Precondition: as of `lowest_bound`; some choices that keep the limits gain `reached`, or it is -inf.
    Cost: O(J C R) per step.
    """
    jobs, choices = gain_JC.shape
    use_RX, gain_X, first_J = use_RJC.reshape(len(limit_R), -1), gain_JC.reshape(-1), np.arange(jobs) * choices
    use_XR = use_RX.T.copy()  # the same with what one choice uses side by side
    price_R = best_R = np.zeros(len(limit_R))
    best, hoped, fruitless = np.inf, HOPED, 0
    for step in range(STEPS + 1):
        worth_X = gain_X - price_R @ use_RX
        at_J = worth_X.reshape(jobs, choices).argmax(axis=1) + first_J
        tried = float(price_R @ limit_R + worth_X.take(at_J).sum())
        slope_R = limit_R - use_XR.take(at_J, axis=0).sum(axis=0)
        fruitless = 0 if step == 0 or tried < best - hoped / 2 * abs(best) else fruitless + 1
        if tried < best:
            best, best_R = tried, price_R
        if fruitless == FRUITLESS:
            hoped, fruitless = hoped / 2, 0
        # A price cannot fall below 0: where it is there and more is left than is used, nothing is to be changed.
        downhill_R = np.where((price_R <= 0) & (slope_R > 0), 0.0, slope_R)
        steep = float(downhill_R @ downhill_R)
        if steep == 0 or best - reached <= near * abs(best):
            break
        target = max(reached, best - hoped * abs(best))
        price_R = np.maximum(price_R - (tried - target) / steep * downhill_R, 0.0)
    return bound_at(gain_JC, use_RJC, limit_R, best_R)[0]
