"""Prospects of a job that comes now, beside others: time and cost, and the quickest and on demand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import JobState
from sublet.domain.shape import Shape
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Terms, most_gpus_beside, rows_by_market
from sublet.planning.value_of_time import value_of_time as value_of_time_of
from sublet.policies.price.choices import within_purse
from sublet.policies.price.congestion import WAIT
from sublet.policies.price.policy import Price
from sublet.solve.arrays import Floats

TRIFLE_USD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A shape, hours to the end with the start, and the rent until then."""

    shape: Shape
    hours: float
    usd: float
    usd_per_h: float
    waits: bool  # others have all that it could have now


def prospect(terms: Terms, job: Job, value_of_time: float, *, on_demand: bool = False) -> Prospect | None:
    """Of a job that comes now, within what others leave; None if nothing can be had even alone. Cost: O(shapes).

    Where others leave nothing it waits for what it would have alone; so it is on demand, which is there to compare.
    """
    menu = menu_of(job, terms.sites)
    state = JobState(job=job, seq=0, as_of_s=terms.now_s, held_since_s=terms.now_s)
    options = options_of(menu, state, terms.now_s, value_of_time, terms.rent_R)
    if job.purse_left_usd is not None:
        options = within_purse(options, job.purse_left_usd, terms, WAIT)
    pay_C, burn = menu.pay(0.0, terms.rent_R), terms.snapshot.budget.burn
    paid_C = pay_C <= (np.inf if burn is None else burn.usd_per_h + TRIFLE_USD)  # rows fit one by one, and not together
    steady_R = np.where(np.isfinite(terms.on_demand_R), terms.alone_R, 0.0)
    for had_R in (steady_R,) if on_demand else (_left_by_others(terms), terms.alone_R):
        cost_C = np.where(menu.fits(had_R) & paid_C, options.cost_C, np.inf)
        if np.isfinite(cost_C).any():
            at = int(cost_C.argmin())
            return Prospect(
                shape=menu.shapes[at],
                hours=float(options.hours_C[at]),
                usd=float(options.rent_to_the_end(terms.rent_R)[at]),
                usd_per_h=float(pay_C[at]),
                waits=had_R is terms.alone_R,
            )
    return None


def _left_by_others(terms: Terms) -> Floats:
    """GPUs of each row that are promised to no job and could be held beside all that is held now."""
    snapshot, rows = terms.snapshot, terms.rows
    held = rows_by_market(rows, snapshot.promised, snapshot.steady)
    return np.array([most_gpus_beside(snapshot, row, rows) - held[row] for row in rows], dtype=np.float64)


def hour_usd_of(policy: Price, terms: Terms, job: Job) -> float:
    """The worth of an hour of a job that comes now to the policy, its weight included."""
    value = value_of_time_of(terms, policy.trusted_h, policy.hour_usd)
    if value.worth is None or job.hurry:
        return job.weight * value.price.usd_per_h
    return job.weight * min(value.price.usd_per_h, value.worth.of(menu_of(job, terms.sites)))
