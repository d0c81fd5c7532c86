"""A job's own purse: shapes that it cannot pay for to the end are not taken while there are others that it can.

Where it can pay for none, only the cheapest is left to it, which takes it furthest. A market that is sold out now may
be back, so that it counts: who has two cents left waits for spot rather than be moved on demand, where they last a
minute.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sublet.domain.plan import Snapshot
from sublet.planning.menu import Rents, Sharers
from sublet.planning.options import Options
from sublet.policies.price.congestion import WAIT
from sublet.solve.arrays import Bools, Floats

__all__ = ["ever_had", "rent_to_the_end", "within_purse"]


def within_purse(
    options: Options, left_usd: float, rent_P: Rents, sharers_P: Sharers, ever_P: Bools, held: int
) -> Options:
    """The options without those that cost more rent than is left; what it runs on (`held`) it may keep. Cost: O(C)."""
    rent_C = rent_to_the_end(options, rent_P, sharers_P)
    hoped_C = np.where(ever_P[options.menu.site_C], rent_C, np.inf)
    dear_C = rent_C > max(left_usd, float(hoped_C.min(initial=np.inf)))
    if held != WAIT:
        dear_C[held] = False
    return replace(options, cost_C=np.where(dear_C, np.inf, options.cost_C)) if dear_C.any() else options


def rent_to_the_end(options: Options, rent_P: Rents, sharers_P: Sharers) -> Floats:
    """USD; infinite where it cannot run."""
    menu = options.menu
    if len(menu.rate_EC) == 1:
        rent_C: Floats = menu.pay(0.0, rent_P, sharers_P) * options.hours_C
    else:  # later phases may be elsewhere
        rent_C = options.cost_C - options.value_of_time * options.hours_C
    return np.where(np.isfinite(options.cost_C), rent_C, np.inf)


def ever_had(snapshot: Snapshot) -> Bools:
    """By pool, whether limits let anything of it be held at all; what is sold out now may be back."""
    return np.array(
        [
            pool.max_gpus != 0 and any(snapshot.offers[o].limit.max_nodes != 0 for o in pool.offer_ids)
            for pool in snapshot.pools.values()
        ],
        dtype=np.bool_,
    )
