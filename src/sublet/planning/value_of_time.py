"""The worth of an hour of a job: the one number at which the bill meets the budget, or the least rent on demand.

The jobs that arrive, priced kind by kind, give the frontier of budget and time. The rate of spending that the budget
leaves for now picks the point on it. Money left over, or overspent, is made up for over the coming hours, so that the
long-run average is met whatever the forecast was worth.

Where no budget says so, an hour is worth the least on-demand rent of what the job can run on. An owner that would rent
a machine on demand and wait for it values the hour at its rent, roughly. So the cheaper of two shapes is taken unless
it is that much slower: with v the value of an hour, r rents and h hours,

    (v + r_cheap) h_cheap <= (v + r_quick) h_quick     or     h_cheap / h_quick <= (v + r_quick) / (v + r_cheap)

A job of one worker is therefore never slowed down to less than half of what it could have, whatever that saves, and
never pays more than the quickest shape costs. An owner in a hurry says so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sublet.domain.demand import Demand, kind_of
from sublet.domain.job import Job
from sublet.domain.plan import JobState, Snapshot, arrival
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible
from sublet.planning.jobs import Jobs, side_of
from sublet.planning.menu import Menu, menu_of
from sublet.planning.terms import Rents, Sites, Terms
from sublet.solve.arrays import Floats
from sublet.solve.curves import Curves
from sublet.solve.phases import Phases
from sublet.solve.plan_book import plan_book
from sublet.solve.price import Frontier, frontier

TRUSTED_JOBS = 50.0  # a forecast weighs as much as having counted this many jobs: good to 14 % by their chance alone
TRUSTED_H = 72.0  # and as much as three days, for days differ, and part of one tells little of the rest
SILENT_H = 1.0  # without a forecast, rates are taken as if an hour without any job had gone before
MAKE_UP_H = 120.0  # a surplus or debt is made up for within five days: sooner, and every busy day would move the price
TRIFLE = 1e-9  # relative
HURRY = math.inf  # an hour is worth more than any rent: the quickest within the limits
LEAST = 1e-6  # of the dearest rent, or of one dollar where nothing costs any: time always counts for something
CLOSE = 1e-3  # relative, of a price that is searched
BEYOND = 1e6  # times the dearest rent: as good as infinite, and its inverse as good as 0


@dataclass(frozen=True, slots=True)
class TimePrice:
    """USD per job-hour, and the share of the jobs that act as if it were a trifle higher (the others: lower).

    At this value some kinds are indifferent between two shapes; the share is what makes the bill meet the budget.
    """

    usd_per_h: float
    share: float
    priceless: bool = False  # no money would be saved by taking longer
    least_usd: float = 0.0  # out of a purse without an end: for all jobs, here and to come, if only rent counted

    def of(self, state: JobState) -> float:
        """The value of this job's time: its weight is in it. Each job stays on its side, whenever it is asked."""
        side = TRIFLE if side_of(state) < self.share else -TRIFLE
        return state.job.weight * self.usd_per_h * (1.0 + side)

    def of_all(self, jobs: Jobs) -> Floats:
        """The same of many jobs."""
        side_J = np.where(jobs.side_J < self.share, TRIFLE, -TRIFLE)
        return np.asarray(jobs.weight_J * self.usd_per_h * (1.0 + side_J))


@dataclass(frozen=True, slots=True)
class HourWorth:
    """USD per hour, by the menu of a job: the same for all if `usd` is given."""

    usd: float | None
    on_demand_R: Rents  # by list; infinite where there is none on demand
    listed_R: Rents  # of all there is

    def of(self, menu: Menu) -> float:
        """Of a job with this menu, weight 1."""
        least = LEAST * (max(self.listed_R, default=0.0) or 1.0)
        return max(_least_usd(menu, self.on_demand_R, self.listed_R) if self.usd is None else self.usd, least)


@lru_cache(maxsize=4096)
def _least_usd(menu: Menu, *rents: Rents) -> float:
    """An hour of the least that it can run on, by the first of these rents at which it can; 0 if there is none."""
    usd = (float(menu.pay(0.0, rent_R).min(initial=math.inf)) for rent_R in rents)
    return next((each for each in usd if math.isfinite(each)), 0.0)


@dataclass(frozen=True, slots=True)
class ValueOfTime:
    """The worth of an hour of each job: by the budget; where none rules, no more than its owner would pay."""

    price: TimePrice
    worth: HourWorth | None = None  # None where a budget rules, or where all are in a hurry

    def of(self, state: JobState, menu: Menu) -> float:
        """USD per hour, the weight of the job included."""
        value = self.price.of(state)
        if self.worth is not None and not state.job.hurry:
            value = min(value, state.job.weight * self.worth.of(menu))
        return value

    def over(self, jobs: Jobs | None) -> tuple[ValueOfTime, Floats]:
        """This, and the value of each of these jobs."""
        return self, np.zeros(0) if jobs is None else self.of_all(jobs)

    def of_all(self, jobs: Jobs) -> Floats:
        """The same of many jobs. Cost: O(J), and `HourWorth.of` of each kind that there is."""
        value_J, worth = self.price.of_all(jobs), self.worth
        if worth is None:
            return value_J
        usd_U = np.array([worth.of(menu) for menu, _ in jobs.kinds])
        owner_J = jobs.weight_J * usd_U[jobs.kind_J]
        return np.where(jobs.hurries_J, value_J, np.minimum(value_J, owner_J))


def values_of_time(
    terms: Terms, trusted_h: float, hour_usd: float | None, jobs: Jobs | None
) -> tuple[ValueOfTime, Floats]:
    """`value_of_time`, and with it that of each of these jobs."""
    return value_of_time(terms, trusted_h, hour_usd).over(jobs)


def value_of_time(terms: Terms, trusted_h: float = TRUSTED_H, hour_usd: float | None = HURRY) -> ValueOfTime:
    """By the budget; where none rules, an hour is worth no more than `hour_usd`, None = the least rent on demand.

    An average to spend, or a total with an end, is a value of time already.
    """
    budget, price = terms.snapshot.budget, price_of_time(terms, trusted_h)
    if hour_usd == HURRY or budget.average is not None or budget.until_s is not None:
        return ValueOfTime(price)
    return ValueOfTime(price, HourWorth(hour_usd, terms.on_demand_R, terms.listed_R))


def price_of_time(terms: Terms, trusted_h: float = TRUSTED_H) -> TimePrice:
    """The price at which the rest of the budget pays for what is to come, by the forecast and by what was seen.

    A forecast weighs as much as having counted for `trusted_h`.

    It depends on the work that is left, on the jobs to come and on unspent money, never on which nodes are held.
    Otherwise nodes that are cheap to hold would make time dear, and nodes that are dear to hold would make it cheap
    again. The kernel keeps back what is reserved by itself.

    Cost: O(log steps); O(steps) once more when the count of jobs has grown by a sixty-fourth. O(1) without a budget,
    O(jobs) with a total without an end.
    """
    snapshot, rent_R = terms.snapshot, terms.listed_R
    rate, unspent = spending_rate(snapshot), snapshot.unspent
    if math.isinf(rate) and (unspent is None or snapshot.budget.until_s is not None):  # whatever is to come
        return _bounded(TimePrice(math.inf, 1.0), rent_R)
    sites = terms.lasting
    known = _frontier(snapshot.expected, snapshot.arrived, sites, rent_R, trusted_h)
    if known.line is None:  # all that is known of are jobs without an end
        return _bounded(_for_good(snapshot, sites, rent_R), rent_R)
    hours = known.before_h + (snapshot.now_s - snapshot.began_s) / SECONDS_PER_H
    found = _at(known.line, rate * hours)
    if unspent is not None and snapshot.budget.until_s is None:  # it has to do for all jobs, here and to come
        to_pay_h = _gpu_hours_to_pay(snapshot, sites) or known.gpu_hours / known.jobs  # no job: as if one came
        enough = _at(known.line, max(0.0, unspent.usd) * known.gpu_hours / to_pay_h)
        found = min(found, enough, key=lambda price: (price.usd_per_h, price.share))
        return replace(_bounded(found, rent_R), least_usd=known.line.least * to_pay_h / known.gpu_hours)
    return _bounded(found, rent_R)


def _gpu_hours_to_pay(snapshot: Snapshot, sites: Sites) -> float:
    """At the most efficient, of what jobs that are here have left, and of all that are to come."""
    here = [*snapshot.active.values(), *snapshot.waiting.by(arrival)]
    left_h = [_gpu_hours(state.job, max(0.0, state.remaining_at(snapshot.now_s)), sites) for state in here]
    return math.fsum(left_h) + _gpu_hours_to_come(snapshot, sites)


def _gpu_hours_to_come(snapshot: Snapshot, sites: Sites) -> float:
    """Of the rest of the forecast, or without one of as much again as has come."""
    demand, part = snapshot.expected, 1.0
    if demand is None or not demand.hours:
        demand = snapshot.arrived
    else:
        part = max(0.0, 1.0 - (snapshot.now_s - snapshot.began_s) / SECONDS_PER_H / demand.hours)
    return part * sum(kind.jobs * _gpu_hours(kind.like, kind.work, sites) for kind in demand.kinds.values())


def _gpu_hours(job: Job, work: float, sites: Sites) -> float:
    """Of so much work of such a job, without an end of a day's; nothing where it cannot run."""
    menu = menu_of(job, sites)
    rate = menu.gpu_rate_E[0]
    return (work if math.isfinite(work) else menu.goal(0.0, work)) / rate if rate else 0.0


def _for_good(snapshot: Snapshot, sites: Sites, rent_R: Rents) -> TimePrice:
    """The most at which jobs without an end, as they are now, cost no more an hour than is to be spent."""
    found: dict[Hashable, tuple[Menu, Job, int]] = {}
    for state in (*snapshot.active.values(), *snapshot.waiting.by(lambda state: state.seq)):
        if math.isinf(state.job.work):
            *_, count = found.get(kind := kind_of(state.job), (0,))
            found[kind] = (menu_of(state.job, sites), state.job, count + 1)
    kinds = [each for each in found.values() if each[0].shapes]
    rate = spending_rate(snapshot)
    if not kinds or math.isinf(rate):
        return TimePrice(math.inf, 1.0)
    low, high = (max(rent_R, default=0.0) or 1.0) / BEYOND, (max(rent_R, default=0.0) or 1.0) * BEYOND
    if _spent_for_good(kinds, high, rent_R) <= rate:
        return TimePrice(math.inf, 1.0)
    while high > low * (1.0 + CLOSE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _spent_for_good(kinds, middle, rent_R) <= rate else (low, middle)
    return TimePrice(low, 1.0)


def _spent_for_good(kinds: Sequence[tuple[Menu, Job, int]], value: float, rent_R: Rents) -> float:
    """USD an hour, each in the shape in which its work costs least."""
    spent = 0.0
    for menu, job, count in kinds:
        hours_C = menu.hours(menu.goal(0.0, job.work)).sum(axis=0)
        best = int((menu.pay(job.weight * value, rent_R) * hours_C).argmin())
        spent += count * float(menu.rent_when_full(rent_R)[best])
    return spent


def constant_price(terms: Terms, sites: Sites | None = None) -> TimePrice:
    """At which the forecast, if it is true, spends the aim of the budget; without one, what was seen counts.

    With `sites`, as if there were no others.
    """
    snapshot = terms.snapshot
    demand, aim = snapshot.expected, snapshot.budget.average
    hours = 0.0 if demand is None else demand.hours
    if demand is None or not hours:
        demand, hours = snapshot.arrived, SILENT_H + (snapshot.now_s - snapshot.began_s) / SECONDS_PER_H
    known = _frontier(None, demand, terms.lasting if sites is None else sites, terms.listed_R, 0.0)
    return _bounded(_at(known.line, math.inf if aim is None else aim.usd_per_h * hours), terms.listed_R)


def spending_rate(snapshot: Snapshot) -> float:
    """USD per hour to spend from now on, so that the long run comes out right; infinite without a limit."""
    budget, rate = snapshot.budget, math.inf
    if budget.average is not None and snapshot.allowed is not None:
        rate = max(0.0, budget.average.usd_per_h + (snapshot.allowed - snapshot.spent).usd / MAKE_UP_H)
    if budget.until_s is not None and (unspent := snapshot.unspent) is not None:
        lasts_h = (budget.until_s - snapshot.now_s) / SECONDS_PER_H
        rate = min(rate, max(0.0, unspent.usd) / lasts_h if lasts_h > 0 else 0.0)
    return rate


def _at(line: Frontier | None, budget: float) -> TimePrice:
    if line is None or math.isnan(budget) or budget >= line.most:
        return TimePrice(math.inf, 1.0)
    if budget < line.least:
        return TimePrice(0.0, 0.0)
    found = line.at(budget)
    return TimePrice(found.value_of_time, found.share)


def _bounded(price: TimePrice, rent_R: Rents) -> TimePrice:
    dearest = max(rent_R, default=0.0) or 1.0
    most = dearest * BEYOND
    return TimePrice(min(max(price.usd_per_h, dearest / BEYOND), most), price.share, price.usd_per_h >= most)


def least_usd(terms: Terms) -> float:
    """For which all that is forecast can be done, if nothing but rent counts and no GPU of a node is left over."""
    demand = terms.snapshot.expected
    line = None if demand is None else _frontier(None, demand, terms.lasting, terms.listed_R, 0.0).line
    return 0.0 if line is None else line.least


class _Known(NamedTuple):
    """The frontier of money and time for all jobs counted and forecast, and how much these are."""

    line: Frontier | None
    jobs: float
    gpu_hours: float  # at the most efficient
    before_h: float  # hours of forecast in it


@lru_cache(maxsize=32)
def _frontier(expected: Demand | None, arrived: Demand, sites: Sites, rent_R: Rents, trusted_h: float) -> _Known:
    before_h = SILENT_H
    weight_of_forecast = 0.0
    jobs = 0.0 if expected is None else sum(kind.jobs for kind in expected.kinds.values())
    if expected is not None and expected.hours > 0 and jobs > 0:
        before_h = max(trusted_h, TRUSTED_JOBS * expected.hours / jobs)
        weight_of_forecast = before_h / expected.hours
    kinds: dict[Hashable, tuple[Job, float, float]] = {}
    for demand, weight in ((expected, weight_of_forecast), (arrived, 1.0)):
        for key, kind in demand.kinds.items() if demand is not None and weight else ():
            if not kind.jobs:
                continue
            like, jobs, work = kinds.get(key, (kind.like, 0.0, 0.0))
            kinds[key] = (like, jobs + weight * kind.jobs, work + weight * kind.jobs * kind.work)
    rows = [(like, jobs, work, _curve(like, work / jobs, sites, rent_R)) for like, jobs, work in kinds.values()]
    rows = [row for row in rows if len(row[3][0])]
    if not rows:
        return _Known(None, 0.0, 0.0, before_h)
    width = max(len(hours_H) for _, _, _, (hours_H, _) in rows)
    hours_IH = np.full((len(rows), width), np.inf)
    cost_IH = hours_IH.copy()
    for at, (_, _, _, (hours_H, cost_H)) in enumerate(rows):
        hours_IH[at, : len(hours_H)], cost_IH[at, : len(cost_H)] = hours_H, cost_H
    curves = Curves.from_tables(hours_IH, cost_IH, [like.weight for like, *_ in rows])
    jobs_I = [jobs for _, jobs, *_ in rows]
    gpu_hours = sum(_gpu_hours(like, work, sites) for like, _, work, _ in rows)
    return _Known(frontier(curves, jobs_I), sum(jobs_I), gpu_hours, before_h)


def _curve(like: Job, work: float, sites: Sites, rent_R: Rents) -> tuple[Floats, Floats]:
    """Hours and USD of the plans that a mean job of this kind could follow."""
    menu = menu_of(like, sites)
    if not menu.shapes:  # it runs nowhere, or is taken back before it has kept anything
        return np.zeros(0), np.zeros(0)
    if len(menu.rate_EC) > 1:
        near = float(f"{work:.1e}")  # so that a mean that creeps does not call for a new plan book every time
        hours_H, cost_H = _book(menu, near, rent_R)
        return hours_H * (work / near), cost_H * (work / near)
    hours_C = menu.start_C + menu.hours(work)[0]
    return hours_C, hours_C * menu.rent_when_full(rent_R)


@lru_cache(maxsize=512)
def _book(menu: Menu, work: float, rent_R: Rents) -> tuple[Floats, Floats]:
    """The same for a job with phases, changes on the way included."""
    rent_C = menu.rent_when_full(rent_R)
    phases = Phases.from_tables(
        menu.hours(work)[None], rent_C[None], restart=menu.restart_C[None], start=menu.start_C[None]
    )
    try:
        hulls = plan_book(phases).curves.hulls
    except Infeasible:  # there is a phase that nothing on offer gets through
        return np.zeros(0), np.zeros(0)
    return hulls.time_V, hulls.cost_V
