"""What a job that comes now may expect, if it is alone: what it takes and costs, beside the quickest and on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import JobState
from sublet.domain.shape import Shape
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import value_of_time as value_of_time_of
from sublet.policies.price.choices import within_purse
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.policy import Price

__all__ = ["Prospect", "hour_usd_of", "prospect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A shape, hours to the end with the start, and the rent until then."""

    shape: Shape
    hours: float
    usd: float
    usd_per_h: float


def prospect(terms: Terms, job: Job, value_of_time: float, *, on_demand: bool = False) -> Prospect | None:
    """Of a job that starts now, within what can be had; None if nothing can. Cost: O(shapes)."""
    menu = menu_of(job, terms.sites)
    state = JobState(job=job, seq=0, as_of_s=terms.now_s, held_since_s=terms.now_s)
    options = options_of(menu, state, terms.now_s, value_of_time, terms.rent_P, terms.sharers_P)
    if job.purse_left_usd is not None:
        options = within_purse(options, job.purse_left_usd, terms, WAIT)
    had_P = np.where(np.isfinite(terms.on_demand_P), terms.alone_P, 0.0) if on_demand else terms.alone_P
    cost_C = np.where(menu.gpus_C <= had_P[menu.site_C], options.cost_C, np.inf)
    if not np.isfinite(cost_C).any():
        return None
    at = int(cost_C.argmin())
    return Prospect(
        shape=menu.shapes[at],
        hours=float(options.hours_C[at]),
        usd=float(options.rent_to_the_end(terms.rent_P, terms.sharers_P)[at]),
        usd_per_h=float(menu.pay(0.0, terms.rent_P, terms.sharers_P)[at]),
    )


def hour_usd_of(policy: Price, terms: Terms, job: Job) -> float:
    """What an hour of a job that comes now is worth to the policy, its weight included."""
    value = value_of_time_of(terms, policy.trusted_h, policy.hour_usd)
    if value.worth is None or job.hurry:
        return job.weight * value.price.usd_per_h
    return job.weight * min(value.price.usd_per_h, value.worth.of(menu_of(job, terms.sites)))
