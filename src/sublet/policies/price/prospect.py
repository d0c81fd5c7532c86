"""What a job that comes now may expect, if it is alone: what it takes and costs, beside the quickest and on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Snapshot
from sublet.domain.shape import Shape
from sublet.planning.affordable import most_gpus_alone
from sublet.planning.menu import menu_of, rents, sharers, sites_of
from sublet.planning.options import options_of
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.own_purse import ever_had, rent_to_the_end, within_purse

__all__ = ["Prospect", "prospect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A shape, hours to the end with the start, and the rent until then."""

    shape: Shape
    hours: float
    usd: float
    usd_per_h: float


def prospect(snapshot: Snapshot, job: Job, value_of_time: float, *, on_demand: bool = False) -> Prospect | None:
    """Of a job that starts now, within what can be had; None if nothing can. Cost: O(shapes)."""
    sites, rent = sites_of(snapshot), (rents(snapshot), sharers(snapshot))
    menu = menu_of(job, sites)
    state = JobState(job=job, seq=0, as_of_s=snapshot.now_s, held_since_s=snapshot.now_s)
    options = options_of(menu, state, snapshot.now_s, value_of_time, *rent)
    if job.purse_left_usd is not None:
        options = within_purse(options, job.purse_left_usd, *rent, ever_had(snapshot), WAIT)
    most = most_gpus_alone(snapshot)
    had_P = [most[site.pool] if not on_demand or _is_on_demand(snapshot, site.pool) else 0.0 for site in sites]
    cost_C = np.where(menu.gpus_C <= np.array(had_P)[menu.site_C], options.cost_C, np.inf)
    if not np.isfinite(cost_C).any():
        return None
    at = int(cost_C.argmin())
    return Prospect(
        shape=menu.shapes[at],
        hours=float(options.hours_C[at]),
        usd=float(rent_to_the_end(options, *rent)[at]),
        usd_per_h=float(menu.pay(0.0, *rent)[at]),
    )


def _is_on_demand(snapshot: Snapshot, pool: str) -> bool:
    offers = [snapshot.offers[offer_id].offer for offer_id in snapshot.pools[pool].offer_ids]
    return any(offer.market is Market.ON_DEMAND for offer in offers)
