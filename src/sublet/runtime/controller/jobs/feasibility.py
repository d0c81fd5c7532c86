"""Whether a job can run at all, within what may be held and spent: said when it is submitted, not found out by waiting.

Only limits are looked at, which stay until they are changed; a market that is sold out today is no reason to
refuse a job. Each refusal says which limit is in the way, what the job needs, and what would be feasible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sublet.domain.money import Money, Price, microseconds
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import JobState, Pool
from sublet.errors import Infeasible
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Terms
from sublet.runtime.clock import Clock
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.jobs.factory import RecordFactory
from sublet.runtime.controller.memory import kernel_job, pools_for
from sublet.runtime.jobs.spec import JobSpec

MONEY_IS_SHORT, TIME_IS_SHORT = 110, 111
STOP_S = 6.0  # wall, to save and leave: what a job's own purse must still pay for


class Feasibility:
    """Of jobs at one controller, which can rent `offers`."""

    def __init__(self, inbox: Inbox, *, offers: Sequence[Offer], factory: RecordFactory, clock: Clock) -> None:
        self._inbox, self._offers, self._factory, self._clock = inbox, tuple(offers), factory, clock

    def refuse_beyond_limits(self, spec: JobSpec) -> None:
        """Infeasible if no pool that it may run in could ever hold it, by nodes, quotas, burn limit or budget."""
        pools_for(spec, self._offers)  # there is a pool at all
        ways = self._ways(spec)
        _refuse_wide(spec, ways)
        fits = [way for way in ways if way.workers <= way.most_workers]
        _refuse_core(spec, fits)
        fits = [way for way in fits if spec.min_on_demand <= way.most_on_demand]
        self._refuse_beyond_burn(spec, fits)
        self._refuse_beyond_purse(spec, fits)

    def refuse_beyond_own_purse(self, job_id: str, spec: JobSpec, *, spent_usd: float = 0.0) -> None:
        """Infeasible if what is left of the job's own budget does not pay for a start and a safe end."""
        if spec.purse_usd is None:
            return
        needed, left = self.start_usd(spec), spec.purse_usd - spent_usd
        if left < needed:
            more = f"top it up: sublet budget top-up --job {job_id} {_cents_up(needed - left)}"
            hint = more if spent_usd else f"give it at least USD {_cents_up(needed)}"
            raise Infeasible(
                f"{job_id} cannot start",
                binding="what is left of its own budget, in USD,",
                needed=needed,
                available=max(0.0, left),
                hint=hint,
                exit_code=MONEY_IS_SHORT,
            )

    def refuse_late(self, spec: JobSpec) -> str:
        """Infeasible if even the fastest way within the limits ends too late; a warning if that cannot be known."""
        if spec.deadline_s is None:
            return ""
        if spec.work is None or spec.samples_per_s is None:
            return "whether its deadline can be met is not known: training.target and training.samples_per_s would tell"
        terms = Terms.from_snapshot(self._inbox.kernel.snapshot())
        job = kernel_job(self._factory.bare_record(spec.name, spec), self._clock.speedup)
        state = JobState(job=job, seq=0, as_of_s=terms.now_s, held_since_s=terms.now_s)
        menu = menu_of(job, terms.sites)
        options = options_of(menu, state, terms.now_s, 1.0, terms.rent_R)
        most = {way.pool: way.most_workers for way in self._ways(spec)}
        ends_h = [
            (float(hours), shape)
            for hours, shape in zip(options.hours_C, menu.shapes, strict=True)
            if shape.gpus <= most.get(shape.pool, 0.0)
        ]
        fastest_h, shape = min(ends_h, key=lambda each: each[0], default=(0.0, None))
        if fastest_h * 3600.0 > spec.deadline_s:
            raise Infeasible(
                f"{spec.name} cannot be done in time",
                binding="hours until its deadline",
                needed=round(fastest_h, 3),
                available=round(spec.deadline_s / 3600.0, 3),
                hint=f"a deadline {math.ceil(fastest_h * 60.0)}m from now could be met, on {shape}",
                exit_code=TIME_IS_SHORT,
            )
        return ""

    def doubt_core(self, spec: JobSpec) -> str:
        """A warning where a core on demand means that all of it is, since no job here can be on both markets."""
        pools = self._inbox.kernel.supply.pools
        if not spec.min_on_demand or spec.market != "auto" or any(pools[way.pool].is_mixed for way in self._ways(spec)):
            return ""
        return "all of its workers will be on demand: for a core beside others on spot, sublet up --mix-markets"

    def start_usd(self, spec: JobSpec) -> float:
        """Least cost of the cheapest start: the shortest bill of its nodes, or to boot, save and leave."""

        def usd(way: _Way) -> float:
            offer, stop_s = way.cheapest, (STOP_S + self._factory.carry_s(spec)) * self._clock.speedup
            seconds = max(offer.minimum_billing_s, offer.billed_by_s, offer.boot_s + stop_s)
            return way.share * way.price.over(microseconds(seconds)).usd

        return min(usd(way) for way in self._ways(spec))

    def _ways(self, spec: JobSpec) -> list[_Way]:
        supply = self._inbox.kernel.supply
        allowed = pools_for(spec, self._offers)
        ways = []
        for pool in supply.pools.values():
            if allowed and pool.name not in allowed:
                continue
            offers = [supply.offers[offer_id] for offer_id in pool.offer_ids]
            sure = [offer for offer in offers if offer.market is Market.ON_DEMAND]
            if spec.min_on_demand and not sure:
                continue
            prices = {offer.id: min(offer.price, supply.ledger.believed(offer.id)) for offer in offers}
            size, workers = pool.gpus_per_node, spec.least_workers
            core, needed = -(-spec.min_on_demand // size), -(-workers // size)
            cheapest = _cheapest(offers, prices)
            usd = (needed - core) * prices[cheapest.id].micro_usd_per_h
            usd += core * prices[_cheapest(sure, prices).id].micro_usd_per_h if core else 0
            reserve = (needed - core) * min(offer.reserve.grains for offer in offers)
            reserve += core * min(offer.reserve.grains for offer in sure) if core else 0
            ways.append(
                _Way(
                    pool=pool.name,
                    workers=workers,
                    most_workers=self._most(pool, pool.offer_ids),
                    most_on_demand=self._most(pool, pool.markets.get(Market.ON_DEMAND, ())),
                    cheapest=cheapest,
                    price=Price(usd),
                    reserve=Money(reserve),
                    share=workers / (needed * size),
                )
            )
        return ways

    def _most(self, pool: Pool, offer_ids: Sequence[str]) -> float:
        """Workers on nodes of these offers of a pool, by limits and quotas."""
        nodes = [self._inbox.kernel.supply.limits[offer_id].max_nodes for offer_id in offer_ids]
        held = math.inf if None in nodes else sum(most for most in nodes if most is not None)
        quotas = [most for quota_of, most in pool.quotas if set(offer_ids) <= set(quota_of)]
        return min(held * pool.gpus_per_node, *quotas, math.inf)

    def _refuse_beyond_burn(self, spec: JobSpec, ways: list[_Way]) -> None:
        burn = self._inbox.kernel.supply.budget.burn
        if burn is None:
            return
        least = min(way.price.usd_per_h for way in ways)
        if least > burn.usd_per_h:
            raise Infeasible(
                f"{spec.name} cannot run",
                binding="the burn limit, in USD per hour,",
                needed=least,
                available=burn.usd_per_h,
                hint=f"sublet budget set --burn {_cents_up(least)}",
                exit_code=MONEY_IS_SHORT,
            )

    def _refuse_beyond_purse(self, spec: JobSpec, ways: list[_Way]) -> None:
        """Every node takes its reserve from the budget; what others reserve now comes back to it."""
        supply = self._inbox.kernel.supply
        if supply.budget.purse is None:
            return
        left = supply.budget.purse - supply.ledger.spent(self._inbox.now_s())
        needed = min(way.reserve for way in ways)
        if left < needed:
            raise Infeasible(
                f"{spec.name} cannot start",
                binding="what is left in the budget, in USD,",
                needed=needed.usd,
                available=max(0.0, left.usd),
                hint=f"sublet budget top-up {_cents_up(needed.usd - left.usd)}",
                exit_code=MONEY_IS_SHORT,
            )


# ---------------------------------------------------------------------- the limits, one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A pool in which a job may run at its least worker count."""

    pool: str
    workers: int
    most_workers: float  # by nodes and quotas, whatever the market has now
    most_on_demand: float
    cheapest: Offer
    price: Price  # of its nodes, those of its core on demand: each at the lower of list price and today's
    reserve: Money  # what is kept back for them
    share: float  # of its nodes' rent, what falls to it where others may share them


def _refuse_wide(spec: JobSpec, ways: list[_Way]) -> None:
    widest = max(ways, key=lambda way: way.most_workers)
    if spec.least_workers > widest.most_workers:
        most = int(widest.most_workers)
        hint = f"ask for 1..{most}" if most else "raise the limit"
        if spec.stages > most > 0:
            hint = f"cut its model into fewer parts, each of which has a worker: parallel.stages 1..{most}"
        raise Infeasible(
            f"{spec.name} cannot run",
            binding=f"the most workers that may be had, on {widest.pool},",
            needed=spec.least_workers,
            available=most,
            hint=f"{hint}, or let more nodes be held: sublet up --nodes N",
        )


def _refuse_core(spec: JobSpec, ways: list[_Way]) -> None:
    surest = max(ways, key=lambda way: way.most_on_demand)
    if spec.min_on_demand > surest.most_on_demand:
        fewer = f"resources: {{min_on_demand: {int(surest.most_on_demand)}}}"
        raise Infeasible(
            f"{spec.name} cannot run",
            binding=f"the most workers on demand that may be had, on {surest.pool},",
            needed=spec.min_on_demand,
            available=int(surest.most_on_demand),
            hint=f"{fewer}, or let more nodes be held: sublet up --nodes N",
        )


def _cheapest(offers: Sequence[Offer], prices: Mapping[str, Price]) -> Offer:
    return min(offers, key=lambda offer: (prices[offer.id], offer.id))


def _cents_up(usd: float) -> str:
    """Enough, in whole cents."""
    return f"{math.ceil(usd * 100.0) / 100.0:.2f}"
