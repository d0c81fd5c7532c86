"""A kernel that is under way, forward in virtual time: the same state and policy, and days of a record to come.

The record was made elsewhere than the fleet is: of supply, numbers are taken as they are; of prices, by how much
they rose and fell.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sublet.domain.actions import Action, MakePlan, SetTimer
from sublet.domain.budget import Budget
from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    Event,
    JobFinished,
    NodeLost,
    NodeReleased,
    PriceChanged,
    TimerFired,
)
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.domain.timers import CheckPurse, Timer
from sublet.domain.units import DAY_S
from sublet.kernel.cluster import NodePhase
from sublet.kernel.kernel import Kernel
from sublet.market.prices import PriceBook, load_prices
from sublet.market.spot import SpotTrace
from sublet.sim.simulator import Driver
from sublet.sim.world import MarketChange, Physics, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """At which a future begins: which timers run then, and which nodes will be taken, and when."""

    now_s: float
    timers: Mapping[Timer, float] = field(default_factory=dict)
    doomed_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Future:
    """The result of one future. Seconds and dollars count from the moment at which it begins."""

    looks: list[tuple[float, float, float]] = field(default_factory=list)  # (seconds, dollars, share of the work done)
    finish_s: dict[str, float] = field(default_factory=dict)  # by job, of those that ended
    losses: int = 0  # nodes that the cloud took


def go_forward(  # noqa: PLR0913 - what goes on, and how to look at it
    kernel: Kernel,
    policy: Policy,
    market: Iterable[MarketChange],
    moment: Moment,
    *,
    physics: Physics,
    until_s: float,
    budget: Budget | None = None,
    seed: int = 0,
    every_s: float = 600.0,
) -> Future:
    """Let `kernel` live on from `moment` to `until_s` at the latest. It is used up: another future takes another one.

    With `budget`, the first thing that happens is that it is another one. Every `every_s` it is looked at. Equal seeds
    and markets give equal futures.
    """
    now_s = moment.now_s
    offers = kernel.supply.offering.every.values()
    world = World(offers, physics, np.random.default_rng(seed), market, begin_s=now_s)
    watch = _Watch(kernel, world, now_s, every_s)
    driver = Driver(kernel, world, policy, watch, physics.planning_s, checked=False, watch=None)
    first: list[Event] = [] if budget is None else [BudgetChanged(now_s, budget)]
    for node in kernel.cluster.nodes.values():
        if node.phase is NodePhase.RELEASING:
            first.append(NodeReleased(now_s, node.id))
            continue
        ready_s = now_s + physics.provision_s if node.phase is NodePhase.REQUESTED else None
        lost_s = max(now_s, moment.doomed_s[node.id]) if node.id in moment.doomed_s else None
        world.hold(node.id, node.offer.id, ready_s=ready_s, lost_s=lost_s)
    for job_id, state in kernel.jobs.items():
        first += world.go_on(now_s, state, kernel.tenancy.placement.get(job_id, ()))
    for timer, at_s in moment.timers.items():
        world.obey(now_s, SetTimer(timer, at_s))
    if kernel.planning:
        world.obey(now_s, MakePlan())
    driver.hear([*first, TimerFired(now_s, CheckPurse())])
    driver.run(0, until_s, None)
    watch.look(kernel.now_s, kernel)
    return watch.future


class _Watch:
    """Looks at a future now and then."""

    def __init__(self, kernel: Kernel, world: World, now_s: float, every_s: float) -> None:
        self.future = Future()
        self._world, self._began_s, self._every_s = world, now_s, every_s
        self._spent_usd = kernel.ledger.spent(now_s).usd
        self._work = {job_id: state.job.work for job_id, state in kernel.jobs.items()}

    def note(self, event: Event, actions: list[Action], kernel: Kernel) -> None:  # noqa: ARG002 - as Notes has it
        """One event."""
        future, at_s = self.future, event.at_s - self._began_s
        if isinstance(event, JobFinished):
            future.finish_s[event.job_id] = at_s
        future.losses += isinstance(event, NodeLost)
        if not future.looks or at_s >= future.looks[-1][0] + self._every_s or isinstance(event, JobFinished):
            self.look(event.at_s, kernel)

    def look(self, now_s: float, kernel: Kernel) -> None:
        """How far it is, and what it has cost."""
        usd, done = kernel.ledger.spent(now_s).usd - self._spent_usd, self._world.done_at(now_s)
        shares = [
            1.0 if job_id in self.future.finish_s else min(1.0, done.get(job_id, 0.0) / work)
            for job_id, work in self._work.items()
        ]
        self.future.looks.append((now_s - self._began_s, usd, sum(shares) / len(shares) if shares else 1.0))


TRIED = 64  # moments of the record, to find one at which the fleet could be as it is


@dataclass(slots=True)
class MarketDays:
    """`held` are nodes of each offer, `prices` what one costs now."""

    trace: SpotTrace
    offers: Sequence[Offer]
    held: Mapping[str, int]
    prices: Mapping[str, Price]
    _books: dict[str, PriceBook] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trace = replace(self.trace, repeat=True)
        for offer in self.spot:
            if offer.cloud == "aws" and offer.instance_type and offer.region:
                book = load_prices(instance_type=offer.instance_type, region=offer.region)
                if offer.id in book.series:
                    self._books[offer.id] = book

    @property
    def spot(self) -> list[Offer]:
        """Offers that follow the record; on demand is always there."""
        return [offer for offer in self.offers if offer.market is Market.SPOT]

    @property
    def notes(self) -> list[str]:
        """Notes for a reader of the results."""
        if not self.spot:
            return ["nothing is rented on the spot market: every future is the same"]
        hours, zones = self.trace.span_s / 3600, len(self.trace.zones)
        drawn = "from a moment drawn by chance" if zones == 1 else "from a moment and in zones drawn by chance"
        told = [f"spot supply follows {self.trace.name} ({zones} zones, {hours:.0f} h), {drawn}"]
        most = max(int(steps.value.max()) for steps in self.trace.series.values())
        told += [
            f"{self.held[offer.id]} nodes of {offer.id} are held, more than the record had: it is taken several times"
            for offer in self.spot
            if self.held.get(offer.id, 0) > most
        ]
        priced = ", ".join(self._books) or "no offer"
        return [*told, f"prices move as recorded of {priced}; others stay as they are"]

    def changes(self, rng: np.random.Generator, begin_s: float, until_s: float) -> Iterator[MarketChange]:
        """One draw of what comes from `begin_s` on."""
        drawn = [str(zone) for zone in rng.permutation(self.trace.zones)]
        zones = {offer.id: drawn[at % len(drawn)] for at, offer in enumerate(self.spot)}
        start_s = self._start_s(rng, zones)
        streams = [self._supply(zones, start_s, begin_s, until_s)]
        streams += [self._price(offer_id, rng, begin_s, until_s) for offer_id in self._books]
        return heapq.merge(*streams, key=lambda change: change.at_s)

    def _times(self, offer_id: str, zone: str) -> int:
        """How often the record of a zone must be taken for it to have what is held."""
        most = int(self.trace.series[zone].value.max())
        return max(1, math.ceil(self.held.get(offer_id, 0) / max(1, most)))

    def _start_s(self, rng: np.random.Generator, zones: Mapping[str, str]) -> float:
        """A moment at which there is what is held: what is held was not taken a moment ago. Else the best of many."""
        best, best_missing = 0.0, math.inf
        for start_s in rng.uniform(0.0, self.trace.span_s, TRIED):
            missing = sum(
                max(0, self.held.get(each, 0) - self._times(each, zone) * self.trace.value_at(zone, float(start_s)))
                for each, zone in zones.items()
            )
            if missing < best_missing:
                best, best_missing = float(start_s), missing
            if not missing:
                break
        return best

    def _supply(
        self, zones: Mapping[str, str], start_s: float, begin_s: float, until_s: float
    ) -> Iterator[MarketChange]:
        in_zone: dict[str, list[str]] = {}
        for offer_id, zone in zones.items():
            in_zone.setdefault(zone, []).append(offer_id)
        if not in_zone:
            return
        for t_s, zone, available in self.trace.events(start_s, start_s + until_s - begin_s):
            at_s = begin_s + t_s - start_s
            for offer_id in in_zone.get(zone, ()):
                nodes = self._times(offer_id, zone) * available
                first = max(nodes, self.held.get(offer_id, 0)) if at_s == begin_s else nodes
                yield AvailabilityChanged(at_s, offer_id, first)

    def _price(self, offer_id: str, rng: np.random.Generator, begin_s: float, until_s: float) -> Iterator[MarketChange]:
        book, now = self._books[offer_id], self.prices[offer_id].micro_usd_per_h
        steps = book.series[offer_id]
        low_s, high_s = float(steps.t_s[0]), max(float(steps.t_s[0]), book.end_s - (until_s - begin_s))
        start_s = low_s + DAY_S * math.floor(rng.uniform(0.0, high_s - low_s) / DAY_S)
        then = book.price_at(offer_id, start_s)
        if then is None or not then.micro_usd_per_h:
            return
        for t_s, price in book.changes(offer_id, start_s, start_s + until_s - begin_s):
            if t_s > start_s:
                moved = Price(max(1, round(now * price.micro_usd_per_h / then.micro_usd_per_h)))
                yield PriceChanged(begin_s + t_s - start_s, offer_id, moved)
