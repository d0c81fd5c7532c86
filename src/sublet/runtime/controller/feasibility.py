"""Whether a job can run at all, within what may be held and spent: said when it is submitted, not found out by waiting.

Only limits are looked at, which stay until somebody changes them; a market that is sold out today is no reason to
refuse a job. Each refusal says which limit is in the way, what the job needs, and what would be feasible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sublet.domain.money import Money, Price, microseconds
from sublet.domain.offer import Offer
from sublet.domain.plan import JobState
from sublet.errors import Infeasible
from sublet.planning.menu import menu_of
from sublet.planning.options import options_of
from sublet.planning.terms import Terms
from sublet.runtime.clock import Clock
from sublet.runtime.controller.factory import RecordFactory
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.records import kernel_job, pools_for
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["STOP_S", "Feasibility", "least_width"]

MONEY_IS_SHORT, TIME_IS_SHORT = 110, 111
STOP_S = 6.0  # wall, to save and leave: what a job's own purse must still pay for


class Feasibility:
    """Of jobs at one controller, which can rent `offers`."""

    def __init__(self, inbox: Inbox, *, offers: Sequence[Offer], factory: RecordFactory, clock: Clock) -> None:
        self._inbox, self._offers, self._factory, self._clock = inbox, tuple(offers), factory, clock

    def refuse_beyond_limits(self, spec: JobSpec) -> None:
        """Infeasible if no pool that it may run in could ever hold it, by nodes, quotas, burn limit or purse."""
        pools_for(spec, self._offers)  # there is a pool at all
        ways = self._ways(spec)
        _refuse_wide(spec, ways)
        fits = [way for way in ways if way.workers <= way.most_workers]
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
        """Infeasible if even the fastest way within the limits ends too late; a warning if nobody can know."""
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

    def start_usd(self, spec: JobSpec) -> float:
        """What the cheapest start costs at least: the shortest bill of its nodes, or to boot, save and leave."""

        def usd(way: _Way) -> float:
            offer, stop_s = way.cheapest, STOP_S * self._clock.speedup
            seconds = max(offer.minimum_billing_s, offer.billed_by_s, offer.boot_s + stop_s)
            return way.share * Price(way.nodes * way.price.micro_usd_per_h).over(microseconds(seconds)).usd

        return min(usd(way) for way in self._ways(spec))

    def _ways(self, spec: JobSpec) -> list[_Way]:
        supply = self._inbox.kernel.supply
        allowed = pools_for(spec, self._offers)
        ways = []
        for pool in supply.pools.values():
            if allowed and pool.name not in allowed:
                continue
            nodes = [supply.limits[offer_id].max_nodes for offer_id in pool.offer_ids]
            held = math.inf if None in nodes else sum(most for most in nodes if most is not None)
            quota = math.inf if pool.max_gpus is None else pool.max_gpus
            offers = [supply.offers[offer_id] for offer_id in pool.offer_ids]
            prices = {offer.id: min(offer.price, supply.ledger.believed(offer.id)) for offer in offers}
            cheapest = min(offers, key=lambda offer: (prices[offer.id], offer.id))
            workers, needed = least_width(spec), -(-least_width(spec) // pool.gpus_per_node)
            ways.append(
                _Way(
                    pool=pool.name,
                    workers=workers,
                    nodes=needed,
                    most_workers=min(held * pool.gpus_per_node, quota),
                    cheapest=cheapest,
                    price=prices[cheapest.id],
                    share=workers / (needed * pool.gpus_per_node),
                )
            )
        return ways

    def _refuse_beyond_burn(self, spec: JobSpec, ways: list[_Way]) -> None:
        burn = self._inbox.kernel.supply.budget.burn
        if burn is None:
            return
        least = min(way.nodes * way.price.micro_usd_per_h for way in ways) / 1e6
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
        """Every node takes its reserve from the purse; what others reserve now comes back to it."""
        supply = self._inbox.kernel.supply
        if supply.budget.purse is None:
            return
        left = supply.budget.purse - supply.ledger.spent(self._inbox.now_s())
        reserves = [
            (way.nodes * supply.offers[offer_id].reserve.grains)
            for way in ways
            for offer_id in supply.pools[way.pool].offer_ids
        ]
        needed = Money(min(reserves))
        if left < needed:
            raise Infeasible(
                f"{spec.name} cannot start",
                binding="what is left in the purse, in USD,",
                needed=needed.usd,
                available=max(0.0, left.usd),
                hint=f"sublet budget top-up {_cents_up(needed.usd - left.usd)}",
                exit_code=MONEY_IS_SHORT,
            )


def least_width(spec: JobSpec) -> int:
    """The fewest workers that its owner allows."""
    return min(spec.sizes, default=spec.min_workers)


# ---------------------------------------------------------------------- the limits, one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A pool in which a job may run at its least width."""

    pool: str
    workers: int
    nodes: int
    most_workers: float  # by nodes and quotas, whatever the market has now
    cheapest: Offer
    price: Price  # of one of its nodes: the lower of list price and today's
    share: float  # of its nodes' rent, what falls to it where others may share them


def _refuse_wide(spec: JobSpec, ways: list[_Way]) -> None:
    widest = max(ways, key=lambda way: way.most_workers)
    if least_width(spec) > widest.most_workers:
        most = int(widest.most_workers)
        hint = f"ask for 1..{most}" if most else "raise the limit"
        raise Infeasible(
            f"{spec.name} cannot run",
            binding=f"the most workers that may be had, on {widest.pool},",
            needed=least_width(spec),
            available=most,
            hint=f"{hint}, or let more nodes be held: sublet up --nodes N",
        )


def _cents_up(usd: float) -> str:
    """Enough, in whole cents."""
    return f"{math.ceil(usd * 100.0) / 100.0:.2f}"
