"""Prices for several limits at once, at which the bound on what any choices can gain is lowest.

    bound(prices) = prices x limits + sum over jobs of the greatest gain_j(c) - prices x use_j(c)

The bound is convex and made of planes, one per way of choosing. Each try adds the plane that holds at its prices; the
next prices are where all planes so far are lowest, which a linear program with one variable per limit finds.

>>> gain_JC, use_RJC = np.array([[0.0, 3.0], [0.0, 2.0]]), np.array([[[0.0, 1.0], [0.0, 1.0]]] * 2)
>>> lowest_bound(gain_JC, use_RJC, np.array([1.0, 2.0])).bound
3.0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.solve.arrays import Floats, Ints
from sublet.solve.mip.highs import new_solver

__all__ = ["SHARP", "Bound", "bound_at", "lowest_bound"]

# J jobs, C choices, R limits
TRIES = 100  # any prices give a bound that holds; more tries only sharpen it
SHARP = 1e-7  # relative


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """Prices, and what they prove."""

    bound: float
    price_R: Floats
    worth_JC: Floats  # gain less what is paid for what is used

    def losses(self) -> Floats:
        """(J, C): how much less each choice is worth than the best of its job."""
        loss_JC: Floats = self.worth_JC.max(axis=1, keepdims=True) - self.worth_JC
        return loss_JC


def lowest_bound(gain_JC: Floats, use_RJC: Floats, limit_R: Floats, *, sharp: float = SHARP) -> Bound:
    """The prices with the lowest bound, to a relative `sharp` or so.

    Precondition: every job has a choice with a finite gain; uses are 0 or more. Cost: O(J C R) per try, and tens of
    tries with a linear program of R + 1 variables each.
    """
    limits = len(limit_R)
    finite = gain_JC[gain_JC > -np.inf]
    dearest = float(finite.max() - finite.min()) + 1.0  # no unit is worth more than a whole job
    planes = new_solver()
    planes.addVar(-np.inf, np.inf)
    planes.changeColCost(0, 1.0)
    for _ in range(limits):
        planes.addVar(0.0, dearest)
    index = np.arange(limits + 1, dtype=np.int32)
    price_R = np.zeros(limits)
    tried, slope_R = bound_at(gain_JC, use_RJC, limit_R, price_R)
    best = tried
    for _ in range(TRIES):
        # height >= bound at these prices + slope x (prices - these prices)
        planes.addRow(
            tried.bound - float(slope_R @ price_R),
            np.inf,
            len(index),
            index,
            np.concatenate(([1.0], -slope_R)),
        )
        planes.run()
        lowest_R1 = np.array(planes.getSolution().col_value)
        if best.bound - lowest_R1[0] <= sharp * max(abs(best.bound), sharp):
            break
        price_R = np.clip(lowest_R1[1:], 0.0, dearest)
        tried, slope_R = bound_at(gain_JC, use_RJC, limit_R, price_R)
        if tried.bound <= best.bound:
            best = tried
    return best


def bound_at(gain_JC: Floats, use_RJC: Floats, limit_R: Floats, price_R: Floats) -> tuple[Bound, Floats]:
    """The bound at these prices, and how it changes with each."""
    worth_JC = gain_JC - (price_R @ use_RJC.reshape(len(price_R), -1)).reshape(gain_JC.shape)
    column_J: Ints = worth_JC.argmax(axis=1)
    job_J = np.arange(len(gain_JC))
    bound = float(price_R @ limit_R + worth_JC[job_J, column_J].sum())
    slope_R: Floats = limit_R - use_RJC[:, job_J, column_J].sum(axis=1)
    return Bound(bound=bound, price_R=price_R, worth_JC=worth_JC), slope_R
