"""The exact bill: every dollar by purpose and job.

A node is paid for as a whole; each of its GPUs is a job's or idle. A job's share is rounded down to whole grains, and
what the ledger has beyond all shares is unused, so the parts add up to it to the grain. Dollars of redone steps and of
checkpoints are first booked as useful, and moved when the worker says how much it was. A script without a session says
nothing of it: its training is unknown, then useful as far as it has saved or finished, redone when it starts over.

The price is a part of the budget, and the kernel counts it until the budget says otherwise. A controller that ends says
so itself. For one that was killed the next one does: where it runs on the same machine, which was on all the time, that
was paid for all the time. Where it does not, until the last sign of life, and as long as there may have been none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from sublet.domain.actions import Action
from sublet.domain.budget import Budget
from sublet.domain.events import (
    BudgetChanged,
    Event,
    JobCancelled,
    JobChanged,
    JobFailed,
    JobFinished,
    JobSubmitted,
    NodeLost,
    NodeSilent,
    OffersChanged,
    PlanMade,
    PriceChanged,
    PriceDoubted,
    PriceHeardLate,
    ProgressReported,
)
from sublet.domain.money import Money, Price, microseconds
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Placement
from sublet.kernel.kernel import Kernel
from sublet.kernel.ledger import Ledger
from sublet.runtime.clock import Clock
from sublet.runtime.controller.inbox import Ending
from sublet.runtime.controller.money.timekeeping import MARK_EVERY_S


def is_paid(kernel: Kernel) -> bool:
    """Whether anything is, now."""
    return kernel.supply.budget.besides != Price(0)


def said_at_the_end(kernel: Kernel, now_s: float) -> list[Event]:
    """By a controller whose last words these are: the money that is free then buys nothing."""
    return [nothing_wanted(kernel, now_s), BudgetChanged(now_s, _without(kernel))] if is_paid(kernel) else []


def left_behind(kernel: Kernel, clock: Clock, last_s: float) -> list[Event]:
    """By the next controller, of one that was last heard at `last_s` and said nothing at its end."""
    if clock.certain or not is_paid(kernel):
        return []
    return [BudgetChanged(min(clock.now_s(), last_s + MARK_EVERY_S * clock.speedup), _without(kernel))]


def nothing_wanted(kernel: Kernel, at_s: float) -> Event:
    """No node is to be rented in place of one that ended, or for money that became free."""
    return PlanMade(at_s, Plan(hold=dict.fromkeys(kernel.supply.offers, 0)), seen=0)


def _without(kernel: Kernel) -> Budget:
    return replace(kernel.supply.budget, besides=Price(0))


class Purpose(StrEnum):
    """Purpose of a grain: the field of an account, and its name in the store."""

    USEFUL = "useful"
    UNKNOWN = "unknown"
    REDONE = "redone"
    RESTART = "restart"
    IDLE = "idle"
    CHECKPOINT = "checkpoint"


PURPOSES = tuple(Purpose)


@dataclass(slots=True)
class Account:
    """One job's grains by purpose, and its GPU time."""

    useful: int = 0
    unknown: int = 0  # training of which nothing says yet whether it was kept
    redone: int = 0
    restart: int = 0
    idle: int = 0
    checkpoint: int = 0
    on_demand: int = 0  # what its training would have cost on demand, where there is such an offer
    training_gpu_us: int = 0

    @property
    def total(self) -> Money:
        """All of it."""
        return Money(sum(getattr(self, purpose) for purpose in PURPOSES))

    def move(self, purpose: Purpose, grains: int) -> None:
        """These grains of the training, the unknown ones first, were for something else.

        What had to be done again, or stood still, would not have been paid for on demand either.
        """
        trained = self.unknown + self.useful
        grains = max(0, min(grains, trained))
        if purpose is not Purpose.CHECKPOINT and trained:
            self.on_demand -= self.on_demand * grains // trained
        first = min(grains, self.unknown)
        self.unknown -= first
        self.useful -= grains - first
        setattr(self, purpose, getattr(self, purpose) + grains)

    def book(self, purpose: Purpose, grains: int) -> None:
        """So much more for this, or less; where there is not as much, of something else."""
        for each in (purpose, Purpose.RESTART, Purpose.UNKNOWN, Purpose.USEFUL):
            changed = max(grains, -getattr(self, each))
            setattr(self, each, getattr(self, each) + changed)
            grains -= changed

    def keep(self, grains: int) -> None:
        """So much of what was unknown is saved for good."""
        grains = max(0, min(grains, self.unknown))
        self.unknown -= grains
        self.useful += grains

    def throw_away(self, grains: int) -> None:
        """So much of what had counted as useful was for nothing; what is unknown stays so."""
        grains, trained = max(0, min(grains, self.useful)), self.unknown + self.useful
        self.on_demand -= self.on_demand * grains // max(trained, 1)
        self.useful -= grains
        self.redone += grains

    def split(self) -> dict[str, int]:
        """The split, for a later controller: the log has the whole alone."""
        return {str(purpose): getattr(self, purpose) for purpose in (*PURPOSES, "on_demand")}

    def restore_split(self, told: Mapping[str, int], training: Purpose) -> None:
        """As an earlier controller had it; what the log has beyond that was training, what it lacks comes again."""
        if "useful" not in told:  # of a version that noted only what it had moved
            for purpose, grains in told.items():
                self.move(Purpose(purpose), grains)
            return
        more = self.total.grains - sum(told.get(purpose, 0) for purpose in PURPOSES)
        replayed, listed = self.useful + self.unknown, self.on_demand
        for purpose in PURPOSES:  # a version that did not know one of them had none of it
            setattr(self, purpose, told.get(purpose, 0))
        setattr(self, training, getattr(self, training) + max(more, 0))
        self.on_demand = told.get("on_demand", listed) + max(more, 0) * listed // max(replayed, 1)  # at its ratio
        for purpose in (training, *PURPOSES):
            less = min(getattr(self, purpose), max(-more, 0))
            setattr(self, purpose, getattr(self, purpose) - less)
            more += less


@dataclass(slots=True)
class _Held:
    """Holdings of a job since it was last looked at."""

    since_us: int
    placement: Placement
    leaving: Placement
    gpus: Counter[str]  # by offer
    trained: bool  # when it was looked at
    placed_us: int  # since when it is there
    booked: Purpose = Purpose.RESTART  # what its last rent was for


@dataclass(slots=True)
class Bill:
    """Listens to the kernel: `before` and `after` of every event book for the jobs whose holdings change.

    A change of whether a job trains is booked first (`settle_job`); `settle` books all jobs.
    """

    kernel: Kernel
    trains: Callable[[str], bool]  # is this job making steps?
    tells: Callable[[str], bool] = lambda _: True  # does it say itself what it lost? Else its training is unknown
    doubts: Callable[[str], bool] = lambda _: False  # it has ended, and what that is worth is not known
    working: Callable[[str], int | None] = lambda _: None  # GPUs on which it makes steps; None = on all that it holds
    unsure: Callable[[str], int] = lambda _: 0  # grains of earlier starts that may have been kept: unknown they stay
    replaying: bool = False  # a recorded life: only events say when a job began or ceased to train
    waits: bool = False  # nothing is booked now: what time it is has not been found out yet
    jobs: dict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    _at_us: int = 0
    _spent: int = 0  # grains of the ledger at the last `settle`
    _held: dict[str, _Held] = field(default_factory=dict)
    _list_price: dict[str, int] = field(default_factory=dict)

    def before(self, event: Event) -> set[str]:
        """The kernel is about to hear this; the jobs that `after` is to be told."""
        if isinstance(event, PriceChanged | PriceDoubted | OffersChanged):
            self.settle(event.at_s)
            self._list_price.clear()
        jobs = self._whose(event)
        if isinstance(event, NodeLost) and event.billed_to_s is not None:
            for job_id in jobs:
                self.settle_job(job_id, event.at_s)
                if held := self._held.get(job_id):
                    offer = self.kernel.cluster.nodes[event.node_id].offer
                    ended_us = microseconds(event.billed_to_s)
                    _pay_back(self.jobs[job_id], held, event.node_id, ended_us, offer, self.kernel.ledger)
        return jobs

    def after(self, event: Event, jobs: set[str], orders: Iterable[Action]) -> None:
        """The kernel has heard it, and these orders followed."""
        if isinstance(event, PriceHeardLate):
            _book_late(self.jobs, self._held, self.kernel.supply.offering.every[event.offer_id], self.kernel.ledger)
            self._spent = self.kernel.ledger.spent(self._at_us / 1e6).grains
        jobs.update(job_id for order in orders if (job_id := getattr(order, "job_id", "")))
        for job_id in jobs:
            self.settle_job(job_id, event.at_s)
        if isinstance(event, JobFinished | JobFailed | JobCancelled) and not self.doubts(event.job_id):
            (self.keep_work if isinstance(event, JobFinished) else self.lose_unsaved)(event.job_id)

    def settle(self, now_s: float) -> None:
        """Book everything up to now. The cost is in the jobs that hold something, not in the nodes."""
        tenancy = self.kernel.tenancy
        for job_id in self._held.keys() | tenancy.placement.keys() | tenancy.leaving.keys():
            self.settle_job(job_id, now_s)
        self._at_us = self._at_us if self.waits else max(self._at_us, microseconds(now_s))
        self._spent = self.kernel.ledger.spent(self._at_us / 1e6).grains

    def settle_job(self, job_id: str, now_s: float, *, trained: bool | None = None) -> None:
        """Book what it held until now, and look what it holds from now on."""
        now_us = self._at_us = self._at_us if self.waits else max(microseconds(now_s), self._at_us)
        tenancy, held = self.kernel.tenancy, self._held.get(job_id)
        if held is not None and now_us > held.since_us:
            if trained is None:
                trained = held.trained if self.replaying else self.trains(job_id)
            self._book(job_id, held, now_us - held.since_us, trains=trained)
            held.booked = _training(tells=self.tells(job_id)) if trained else Purpose.RESTART
            held.since_us = now_us
        placement, leaving = tenancy.placement.get(job_id, ()), tenancy.leaving.get(job_id, ())
        if not placement and not leaving:
            self._held.pop(job_id, None)
            return
        if held is None or held.placement is not placement or held.leaving is not leaving:
            gpus = self._by_offer(placement, leaving)
            held = self._held[job_id] = _Held(now_us, placement, leaving, gpus, trained=False, placed_us=now_us)
        held.trained = self._runs(job_id) if self.replaying else self.trains(job_id)

    def _runs(self, job_id: str) -> bool:
        """As the log knows it: the workers' own words are not there."""
        return self.kernel.jobs[job_id].phase is Phase.RUNNING

    def _book(self, job_id: str, held: _Held, passed_us: int, *, trains: bool) -> None:
        kernel, account = self.kernel, self.jobs[job_id]
        working = None if self.replaying else self.working(job_id)
        spare = 0 if working is None else max(0, held.gpus.total() - working)  # newcomers start there, or no worker is
        for offer_id, gpus in held.gpus.items():
            offer = kernel.supply.offering.every[offer_id]
            share = kernel.ledger.price(offer_id).micro_usd_per_h * passed_us * gpus // offer.gpus_per_node
            if trains:
                idle = min(spare, gpus)
                unused, spare = share * idle // gpus, spare - idle
                account.restart += unused
                share, gpus = share - unused, gpus - idle  # noqa: PLW2901 - what is left of this job
                account.book(_training(tells=self.tells(job_id)), share)
                account.training_gpu_us += gpus * passed_us
                account.on_demand += self._on_demand(offer.gpu) * gpus * passed_us
            else:
                account.restart += share

    def _whose(self, event: Event) -> set[str]:
        """Jobs whose holdings an event may change by itself; those that orders follow for come on top."""
        if isinstance(event, NodeLost | NodeSilent) and (node := self.kernel.cluster.nodes.get(event.node_id)):
            return set(node.jobs)
        if isinstance(event, JobSubmitted | JobChanged | ProgressReported):
            return set()
        job_id = getattr(event, "job_id", "")
        return {job_id} if job_id else set()

    @property
    def settled_s(self) -> float:
        """Up to when everything is booked: nothing may happen before that any more."""
        return self._at_us / 1e6

    @property
    def unused(self) -> int:
        """Grains that no job used: idle GPUs, boots, minimum bills, and what division leaves over."""
        return self._spent - sum(account.total.grains for account in self.jobs.values())

    def _on_demand(self, gpu: str) -> int:
        """Micro-dollars per GPU-hour of the cheapest on-demand offer of this kind; 0 without one."""
        if gpu not in self._list_price:
            self._list_price[gpu] = min(
                (
                    offer.price.micro_usd_per_h // offer.gpus_per_node
                    for offer in self.kernel.supply.offers.values()
                    if offer.gpu == gpu and offer.market is Market.ON_DEMAND
                ),
                default=0,
            )
        return self._list_price[gpu]

    def burn_usd_per_h(self, job_id: str) -> float:
        """The rent of what a job holds now."""
        held = self.kernel.tenancy.placement.get(job_id, ())
        nodes = self.kernel.cluster.nodes
        return sum(
            self.kernel.ledger.price(nodes[node_id].offer.id).usd_per_h * gpus / nodes[node_id].offer.gpus_per_node
            for node_id, gpus in held
            if node_id in nodes
        )

    def book_checkpoint(self, job_id: str, cloud_s: float) -> int:
        """Training waited so long for a checkpoint; the grains of that."""
        account, before = self.jobs[job_id], self.jobs[job_id].checkpoint
        account.move(Purpose.CHECKPOINT, self._rent(job_id, cloud_s))
        return account.checkpoint - before

    def book_hang(self, job_id: str, cloud_s: float) -> None:
        """It did nothing for so long, and was taken to train."""
        self.jobs[job_id].move(Purpose.RESTART, self._rent(job_id, cloud_s))

    def keep_work(self, job_id: str, ago_s: float = 0.0) -> None:
        """Its work until then, in cloud seconds ago, is saved."""
        account = self.jobs[job_id]
        account.keep(account.unknown - self.unsure(job_id) - self._rent(job_id, ago_s))

    def lose_unsaved(self, job_id: str) -> None:
        """A script without a session ended and saved no more than what we know of."""
        account = self.jobs[job_id]
        account.move(Purpose.REDONE, account.unknown - self.unsure(job_id))

    def take_over(self, job_id: str, told: Mapping[str, int], outcome: Ending) -> None:
        """The split that an earlier controller noted for a job, which has ended since if `outcome` says so."""
        self.jobs[job_id].restore_split(told, _training(tells=self.tells(job_id)))
        if outcome and not self.doubts(job_id):
            (self.keep_work if outcome is Ending.FINISHED else self.lose_unsaved)(job_id)

    def _rent(self, job_id: str, cloud_s: float) -> int:
        """Grains for what it holds now, over this time."""
        return round(self.burn_usd_per_h(job_id) * 1e6 * cloud_s * 1e6)

    def book_redone(self, job_id: str, steps: int, of_steps: int) -> None:
        """So many of the steps made so far are lost."""
        account = self.jobs[job_id]
        account.move(Purpose.REDONE, account.useful * steps // max(of_steps, steps, 1))

    def book_thrown_away(self, job_id: str, steps: int, of_steps: int) -> None:
        """It ended unfinished, this many steps after its last checkpoint, out of those that it had got to."""
        account = self.jobs[job_id]
        account.throw_away(account.useful * steps // max(of_steps, 1))

    def snapshot(self) -> dict[str, Any]:
        """To the grain."""
        return {
            "jobs": {job_id: asdict(account) for job_id, account in self.jobs.items()},
            "at_us": self._at_us,
            "spent": self._spent,
            "held": {
                job_id: [held.since_us, held.trained, held.placed_us, held.booked]
                for job_id, held in self._held.items()
            },
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there, beside a kernel that does."""
        known = {each.name for each in fields(Account)}
        self.jobs.clear()
        for job_id, account in facts.get("jobs", {}).items():
            self.jobs[job_id] = Account(**{name: grains for name, grains in account.items() if name in known})
        self._at_us, self._spent = facts.get("at_us", 0), facts.get("spent", 0)
        self._list_price.clear()
        tenancy = self.kernel.tenancy
        self._held = {}
        for job_id, (since_us, trained, *more) in facts.get("held", {}).items():
            placement, leaving = tenancy.placement.get(job_id, ()), tenancy.leaving.get(job_id, ())
            placed_us, booked = more or (since_us, Purpose.RESTART)  # not in older snapshots
            gpus = self._by_offer(placement, leaving)
            self._held[job_id] = _Held(since_us, placement, leaving, gpus, trained, placed_us, Purpose(booked))

    def _by_offer(self, placement: Placement, leaving: Placement) -> Counter[str]:
        gpus = Counter[str]()
        for node_id, count in (*placement, *leaving):
            gpus[self.kernel.cluster.nodes[node_id].offer.id] += count
        return gpus

    @property
    def total(self) -> Money:
        """The ledger's bill at the time of the last `settle`."""
        return Money(self._spent)


def _training(*, tells: bool) -> Purpose:
    """Purpose of the training of a job: useful if it `tells` what it lost, else unknown."""
    return Purpose.USEFUL if tells else Purpose.UNKNOWN


def _pay_back(account: Account, held: _Held, node_id: str, ended_us: int, offer: Offer, ledger: Ledger) -> None:
    """Its node ended by then, as the provider has it on record: what was booked beyond that was not charged."""
    if held.since_us <= (ended_us := max(ended_us, held.placed_us)):
        return
    gpus = sum(count for each, count in (*held.placement, *held.leaving) if each == node_id)
    grains, _ = ledger.between(offer.id, ended_us, held.since_us)
    account.book(held.booked, -(grains * gpus // offer.gpus_per_node))


def _book_late(jobs: Mapping[str, Account], held_by: Mapping[str, _Held], offer: Offer, ledger: Ledger) -> None:
    """Jobs that hold nodes since before this price began were booked at the one before."""
    (_, known), (since_us, price) = ledger.prices[offer.id][-2:]
    for job_id, held in held_by.items():
        passed_us = held.since_us - max(since_us, held.placed_us)
        if passed_us > 0 and (gpus := held.gpus[offer.id]):
            more = (price.micro_usd_per_h - known.micro_usd_per_h) * passed_us * gpus // offer.gpus_per_node
            jobs[job_id].book(held.booked, more)
