"""What an hour of a job's time is worth where no budget says so: what the least that it can run on costs on demand.

Who would rent a machine on demand and wait for it values the hour at its rent, roughly; we take that at their word. So
the cheaper of two shapes is taken unless it is that much slower: with v the value of an hour, r rents and h hours,

    (v + r_cheap) h_cheap <= (v + r_quick) h_quick     or     h_cheap / h_quick <= (v + r_quick) / (v + r_cheap)

A job of one worker is therefore never slowed down to less than half of what it could have, whatever that saves, and
never pays more than the quickest shape costs. Whoever is in a hurry says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sublet.domain.offer import Market
from sublet.domain.plan import Snapshot
from sublet.planning.menu import Menu, Rents, rents
from sublet.solve.arrays import Floats

__all__ = ["HURRY", "HourWorth", "hour_worth"]

HURRY = math.inf  # an hour is worth more than any rent: the quickest within the limits
LEAST = 1e-6  # of the dearest rent, or of one dollar where nothing costs any: time always counts for something


@dataclass(frozen=True, slots=True)
class HourWorth:
    """USD per hour, by the menu of a job: the same for all if `usd` is given."""

    usd: float | None
    on_demand_P: Rents  # USD per GPU-hour, by list; infinite where there is none on demand
    listed_P: Rents  # of all there is

    def __call__(self, menu: Menu) -> float:
        """Of a job with this menu, weight 1."""
        least = LEAST * (max(self.listed_P, default=0.0) or 1.0)
        if self.usd is not None:
            return max(self.usd, least)
        for rent_P in (self.on_demand_P, self.listed_P):
            node_C = _whole_nodes(menu, rent_P)
            usd = float(node_C.min(initial=math.inf))
            if math.isfinite(usd):
                return max(usd, least)
        return least


def hour_worth(snapshot: Snapshot, usd: float | None) -> HourWorth | None:
    """The rule for jobs without a budget that rules; None where one does, or where all are in a hurry.

    An average to spend, or a purse with an end, is a value of time already.
    """
    budget = snapshot.budget
    if usd == HURRY or budget.average is not None or budget.until_s is not None:
        return None
    return HourWorth(usd, _on_demand(snapshot), rents(snapshot, listed=True))


def _whole_nodes(menu: Menu, rent_P: Rents) -> Floats:
    """The rent of every shape, with what is left over on its last node."""
    rent_C: Floats = np.asarray(rent_P)[menu.site_C] * (menu.gpus_C + menu.spare_C)
    return rent_C


def _on_demand(snapshot: Snapshot) -> Rents:
    found = []
    for pool in snapshot.pools.values():
        offers = [snapshot.offers[offer_id].offer for offer_id in pool.offer_ids]
        prices = [offer.price.usd_per_h for offer in offers if offer.market is Market.ON_DEMAND]
        found.append(min(prices, default=math.inf) / pool.gpus_per_node)
    return tuple(found)
