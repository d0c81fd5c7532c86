"""Who comes first by a deadline where GPUs of a cluster do not go round: the earliest first, as long as it can be met.

On one GPU no order meets deadlines that the earliest first does not, whatever comes later (Liu and Layland 1973). So
who has a deadline goes before who has none, however much time there seems to be: an hour that is given away may be the
one that a job needs that is not here yet.
"""

from __future__ import annotations

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.planning.options import OptionsTable
from sublet.planning.standing import Standing
from sublet.policies.price.choices import SAFETY
from sublet.solve.arrays import Floats

__all__ = ["turns"]

# J jobs, C shapes, N jobs with a deadline that may be met, in order


def turns(standing: Standing, table: OptionsTable, now_s: float) -> Floats:
    """(J,): the places of those that come first, from 0 on; inf of all others. Cost: O(J C) where there are any."""
    left_h_J, turn_J = (standing.deadline_s_J - now_s) / SECONDS_PER_H, np.full(len(standing), np.inf)
    if not (left_h_J < np.inf).any():
        return turn_J
    hours_J = np.where(table.cost_JC < np.inf, table.hours_JC, np.inf).min(axis=1)
    # Speeds are estimates: a job that is a little late may be in time. Of equal ones, those with GPUs stand first.
    first_J = (left_h_J < np.inf) & (SAFETY * hours_J <= left_h_J)
    order_N = np.argsort(left_h_J, kind="stable")
    order_N = order_N[first_J[order_N]]
    turn_J[order_N] = np.arange(len(order_N))
    return turn_J
