"""The price of a GPU in hours of jobs, at which what is cheapest for each comes to as many GPUs as there are.

A GPU of a cluster that is there anyway costs nothing, but a job that has one keeps it from others. If each paid so many
job-hours for an hour of a GPU, it would take the shape in which its time and its GPUs together cost least,

    (1 + price x GPUs) / work done in an hour

and there is one price at which they want as many as there are. So that much is what an hour of its best shape is worth
to a job: a job that scales badly pays for its time, one that scales well for its GPUs.
"""

from __future__ import annotations

import numpy as np

from sublet.solve.arrays import Floats, Ints

__all__ = ["going_rate", "paid_for_gpus"]

LEAST, MOST = 1e-5, 1e3  # job-hours per GPU-hour
CLOSE = 1.03  # a price is found to a factor of this: it only weighs jobs against one another
SOME = 0.1  # where there is enough of all pools together, and not of one: whence prices drift apart
ROUNDS = 10  # of letting prices of several pools drift apart
DRIFT = 0.6  # power of what is wanted over what is there
FURTHEST = 3.0  # in one round

# J jobs, C shapes (padded: infinite hours), R rows, K rows that a shape uses


def paid_for_gpus(price_R: Floats, row_KJC: Ints, gpus_KJC: Floats) -> Floats:
    """(J, C): job-hours in an hour of each shape."""
    if len(price_R) == 1:
        return np.asarray(price_R[0] * gpus_KJC.sum(axis=0))
    return np.asarray((price_R[row_KJC] * gpus_KJC).sum(axis=0))


def going_rate(hours_JC: Floats, weight_J: Floats, row_KJC: Ints, gpus_KJC: Floats, most_R: Floats) -> Floats:
    """(R,): job-hours per GPU-hour; nothing where there is enough for all.

    `hours_JC` is how long a job takes for a unit of its own work. One price for all pools is found by halving; from
    there those of pools of which more is wanted than there is rise, and others fall. Cost: O(J C), some twenty times.

    >>> hours_JC, gpus_KJC = np.array([[1.0, 0.6, 0.45]] * 2), np.array([[[1.0, 2.0, 4.0]] * 2])
    >>> row_KJC = np.zeros(gpus_KJC.shape, dtype=int)
    >>> prices = [going_rate(hours_JC, np.ones(2), row_KJC, gpus_KJC, np.array([gpus])) for gpus in (8.0, 4.0, 2.0)]
    >>> [round(float(price_R[0]), 1) for price_R in prices]  # 1 + 2 p < (1 + p) / 0.6 up to 2; 4 p: up to 0.25
    [0.0, 0.3, 2.0]
    """
    wishes, rows = _Wanted(hours_JC, weight_J, row_KJC, gpus_KJC), len(most_R)
    if (wishes.by_row(np.full(rows, LEAST)) <= most_R).all():
        return np.zeros(rows)
    low, high, most = LEAST, MOST, float(most_R.sum())
    if wishes.gpus(low) <= most:  # of one pool there is not
        return _apart(np.full(rows, SOME), wishes, most_R)
    while high > low * CLOSE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wishes.gpus(middle) <= most else (middle, high)
    price_R = np.full(rows, high)
    return price_R if rows == 1 else _apart(price_R, wishes, most_R)


class _Wanted:
    """The shapes that all want at a price."""

    def __init__(self, hours_JC: Floats, weight_J: Floats, row_KJC: Ints, gpus_KJC: Floats) -> None:
        possible_JC = np.where(hours_JC < np.inf, hours_JC, 0.0)
        self.job_J, self.row_KJC, self.gpus_KJC = np.arange(len(hours_JC)), row_KJC, gpus_KJC
        self.time_JC, self.held_KJC = weight_J[:, None] * hours_JC, gpus_KJC * possible_JC
        self.gpus_JC, self.held_JC = gpus_KJC.sum(axis=0), self.held_KJC.sum(axis=0)

    def gpus(self, price: float) -> float:
        """Of all pools, where they cost the same."""
        column_J = (self.time_JC + price * self.held_JC).argmin(axis=1)
        return float(self.gpus_JC[self.job_J, column_J].sum())

    def by_row(self, price_R: Floats) -> Floats:
        paid_KJC = price_R[self.row_KJC] * self.held_KJC
        column_J = (self.time_JC + (paid_KJC[0] if len(paid_KJC) == 1 else paid_KJC.sum(axis=0))).argmin(axis=1)
        row_X = self.row_KJC[:, self.job_J, column_J].ravel()
        return np.bincount(row_X, self.gpus_KJC[:, self.job_J, column_J].ravel(), minlength=len(price_R)).astype(
            np.float64, copy=False
        )


def _apart(price_R: Floats, wishes: _Wanted, most_R: Floats) -> Floats:
    for at in range(ROUNDS):
        over_R = (wishes.by_row(price_R) + 1.0) / (most_R + 1.0)
        over_R = np.minimum(np.maximum(over_R, 1.0 / FURTHEST), FURTHEST)
        price_R = np.maximum(LEAST, price_R * over_R ** (DRIFT / (1.0 + 0.1 * at)))
    return price_R
