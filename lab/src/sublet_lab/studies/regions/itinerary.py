"""The cheapest way of one job through places that come and go, with all that will happen known: a bound for policies.

The job needs so many units of work before the end, each a unit of time. It is in one place at a time, or nowhere. To
start in a place takes a pause, which is paid like work; a start elsewhere than where the state lies pays for carrying
it, too. A place that closes ends the stay, and nothing that was done is lost.
"""

from __future__ import annotations

import numpy as np

from sublet.errors import InvalidValue
from sublet.solve.arrays import Bools, Floats

# T units of time, P places, S places where the state may lie, W units of work left


def cheapest_itinerary(open_TP: Bools, cost_TP: Floats, carry_SP: Floats, *, work: int, pause: int) -> float:
    """Least cost of `work` units of work within the T units; infinite where there are not enough open ones.

    `cost_TP` is what a unit of time in a place costs, `carry_SP` what it costs to start in P what lies in S; the first
    start carries nothing. Exact, by dynamic programming backwards in time over (place, work left). It never starts
    where the place closes before the pause is over: nothing would come of it.

    Precondition: carrying is no cheaper by way of a third place. Cost: O(T P P W) in time, O(pause P W) in memory.

    >>> always, dear_cheap = np.ones((4, 2), dtype=bool), np.array([[3.0, 1.0]] * 4)
    >>> cheapest_itinerary(always, dear_cheap, np.zeros((2, 2)), work=2, pause=1)
    3.0
    """
    units, places = open_TP.shape
    if cost_TP.shape != open_TP.shape or carry_SP.shape != (places, places):
        raise InvalidValue(
            "cost_TP, carry_SP", (cost_TP.shape, carry_SP.shape), f"of {units} units and {places} places"
        )
    if work < 1 or pause < 0:
        raise InvalidValue("work, pause", (work, pause), "at least 1 and at least 0")
    carry_SP = np.vstack([carry_SP, np.zeros(places)])  # the last: it has not started yet, and lies nowhere
    done_W = np.where(np.arange(work + 1) == 0, 0.0, np.inf)
    lies_SW = np.tile(done_W, (places + 1, 1))  # still to be paid from t on by a job that is nowhere, its state in S
    trains_PW = [
        np.tile(done_W, (places, 1)) for _ in range(pause + 1)
    ]  # and by a job that trains in P, at t + 1, t + 2 ...
    start_TP = _pauses(open_TP, cost_TP, pause)
    for t in range(units - 1, -1, -1):
        now_PW = np.zeros((places, work + 1))
        now_PW[:, 1:] = np.where(open_TP[t], cost_TP[t], np.inf)[:, None] + trains_PW[0][:, :-1]
        trains_PW.insert(0, now_PW)
        for place in np.flatnonzero(np.isfinite(start_TP[t])):
            starts_W = start_TP[t, place] + trains_PW[pause][place]
            np.minimum(lies_SW, carry_SP[:, place, None] + starts_W, out=lies_SW)
        np.minimum(now_PW, lies_SW[:places], out=now_PW)  # it may leave whenever it likes
        trains_PW.pop()
    return float(lies_SW[places, work])


def _pauses(open_TP: Bools, cost_TP: Floats, pause: int) -> Floats:
    """The cost of the pause of a start; infinite where the place closes before its end, or time ends."""
    units, places = open_TP.shape
    cost = np.full((units, places), np.inf)
    paid = np.vstack([np.zeros(places), np.cumsum(np.where(open_TP, cost_TP, 0.0), axis=0)])
    closed = np.vstack([np.zeros(places), np.cumsum(~open_TP, axis=0)])
    last = units - pause
    if last > 0:
        whole = closed[pause : pause + last] == closed[:last]
        cost[:last] = np.where(whole, paid[pause : pause + last] - paid[:last], np.inf)
    return cost
