"""Budgets of teams, users and jobs beneath the one of all: the limit of each, and what follows once it is spent.

A budget pays the shares of its jobs (shares.py), and with each of them those above it do. The rule: at each accounting
point, which is every event and the instant at which the first budget is spent, a budget that is spent gets no new rent,
and its jobs are told to leave. So a team or a user is over its budget by no more than it burns in one interval: until
the look at it, and from there until its jobs have left. A job's budget and that of its file are exact: a job's own
keeps back what leaving may cost, and neither is ever charged more than it has. The rest is the budget of all's
(budget.py), which pays whatever is rented.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sublet.domain.budget import ORG, Budget, Holder, Level, Period, amount_text, calendar_text
from sublet.domain.events import PurseSet
from sublet.domain.job import Job
from sublet.domain.money import Money, microseconds
from sublet.domain.plan import JobState, Phase
from sublet.kernel.shares import Shares, ending_grains, payers
from sublet.kernel.supply import Supply
from sublet.kernel.values_json import from_plain, to_plain

EXACT = (Level.JOB, Level.FILE)  # never charged a grain more than they have
KEPT_BACK = 2  # times what leaving may cost of a job's own budget: while it moves it may hold twice what it had


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limit of one budget: `amount`, beyond what was spent when this period began."""

    amount: Money
    period: Period | None = None
    opening: int = 0  # grains spent before
    ends: int | None = None  # of the period, in Unix time
    unix_0_s: float = 0.0  # what the calendar said when the kernel's clock was 0
    spent: bool = False  # nothing is rented for it any more, in this period
    bound: int = 0  # grains that an exact budget is never charged beyond: the limit, or what was spent when it was set

    @property
    def limit(self) -> int:
        """In grains since everything began."""
        return self.opening + self.amount.grains

    @property
    def ends_s(self) -> float | None:
        """End of the period, by the kernel's clock."""
        return None if self.ends is None else self.ends - self.unix_0_s


@dataclass(slots=True)
class Steps:
    """Steps that follow from a look at all budgets."""

    leave: dict[str, None] = field(default_factory=dict)  # jobs
    tell: list[str] = field(default_factory=list)  # what users should know
    wake_s: float | None = None  # when to look again, if nothing happens before

    def wake(self, now_s: float, lasts_us: float) -> None:
        """One of them lasts so long."""
        if lasts_us < math.inf:
            wake_s = now_s + (lasts_us - 1) / 1e6
            self.wake_s = wake_s if self.wake_s is None else min(self.wake_s, wake_s)


Before = tuple[dict[Holder, Allowance], bool, Budget, int | None, bool]


class BudgetTree:
    """All budgets but what the budget of all promises of itself. Nothing is counted until the first is set."""

    def __init__(self, supply: Supply) -> None:
        self.shares = Shares(supply.cluster, supply.ledger)
        self.allowed: dict[Holder, Allowance] = {}
        self._supply = supply

    # ------------------------------------------------------------------ what is set, and when a period is over

    def set(self, event: PurseSet) -> None:
        """As the user says. Money spent in a period that goes on stays spent."""
        holder, old, now_us = event.holder, self.allowed.get(event.holder), microseconds(event.at_s)
        free = 0 if old is None or holder == ORG else self.shares.spent(holder, now_us) - self.spent(holder, now_us)
        self.allowed.pop(holder, None)
        self.shares.changed = True
        if holder == ORG and event.period is None:  # as any budget: it counts from the beginning
            self._supply.refill(replace(self._supply.budget, purse=event.amount, until_s=None))
            return
        if event.amount is None:
            return
        spent = self.spent(holder, now_us)
        new = Allowance(
            amount=event.amount,
            period=event.period,
            opening=0 if event.period is None else spent,
            ends=None if event.period is None else event.period.ends(event.unix_s),
            unix_0_s=event.unix_s - event.at_s,
        )
        if old is not None and old.period is event.period:  # what it was not charged stays free
            new = replace(new, opening=old.opening + free)
        self.allowed[holder] = replace(new, bound=max(new.limit, spent))
        self._fill(holder)

    def _fill(self, holder: Holder) -> None:
        """The budget of all is one of the budget, counted from the beginning."""
        if holder == ORG:
            self._supply.refill(self.in_force(self._supply.budget))

    def in_force(self, budget: Budget) -> Budget:
        """With the budget that this period has, where the budget of all has periods: no other budget changes that."""
        org = self.allowed.get(ORG)
        return budget if org is None else replace(budget, purse=Money(org.limit), until_s=None)

    def now(self) -> Before:
        """All that `roll` may change."""
        supply = self._supply
        return dict(self.allowed), self.shares.changed, supply.budget, supply.purse.most_nodes, supply.changed

    def roll(self, now_s: float) -> None:
        """The next periods begin, now: this is the end of some."""
        self.shares.changed, now_us = True, microseconds(now_s)
        for holder, old in list(self.allowed.items()):
            if old.period is None or old.ends is None or old.ends_s is None or old.ends_s > now_s:
                continue
            opening = self.spent(ORG, now_us) if holder == ORG else self.shares.spent(holder, now_us)
            new = replace(old, opening=opening, ends=old.period.ends(old.ends), spent=False)
            self.allowed[holder] = replace(new, bound=new.limit)
            self._fill(holder)

    def roll_back(self, before: Before) -> None:
        """As it was."""
        supply = self._supply
        self.allowed, self.shares.changed, supply.purse.budget, supply.purse.most_nodes, supply.changed = before

    def next_end_s(self) -> float | None:
        """End of the next period to end."""
        return min((each.ends_s for each in self.allowed.values() if each.ends_s is not None), default=None)

    def forget(self, job: Job) -> None:
        """It has ended."""
        own = Holder(Level.JOB, job.id)
        for each in (own, Holder(Level.FILE, job.id)):
            self.allowed.pop(each, None)
        self.shares.forget(own)

    def end_by(self, node_id: str, end_s: float | None) -> None:
        """A node was gone by then, where anybody knows when."""
        if self.shares.counts and end_s is not None:
            self.shares.end_by(node_id, microseconds(end_s))

    # ------------------------------------------------------------------ sums

    def spent(self, holder: Holder, now_us: int) -> int:
        """Grains since the tree counts; of all, since everything began. An exact one is not charged what it lacks."""
        if holder == ORG:
            return self._supply.ledger.spent(now_us / 1e6).grains
        grains = self.shares.spent(holder, now_us)
        if holder.level in EXACT and holder in self.allowed:
            return min(grains, self.allowed[holder].bound)
        return grains

    def reserved(self, holder: Holder, now_us: int) -> int:
        """Grains that are kept back to leave."""
        return self.shares.ending(holder, now_us) if holder.level is Level.JOB else 0

    def left(self, holder: Holder, now_us: int) -> int:
        """Grains beyond what is spent and kept back."""
        return self.allowed[holder].limit - self.spent(holder, now_us) - self.reserved(holder, now_us)

    def limited(self, job: Job) -> list[Holder]:
        """The limited budgets that pay for it, but for the budget of all."""
        return [holder for holder in (*payers(job), Holder(Level.FILE, job.id)) if holder in self.allowed]

    # ------------------------------------------------------------------ which jobs may have GPUs

    def pays(self, job: Job) -> bool:
        """None of its budgets is spent."""
        return not any(self.allowed[holder].spent for holder in self.limited(job))

    def held_by(self, job: Job, now_s: float) -> Holder | None:
        """The spent budget that keeps a job without GPUs from starting; None = it may start."""
        for holder in self.limited(job):
            if self.allowed[holder].spent:
                return holder
            if holder.level is Level.JOB and max(self._room(job, now_s).values(), default=0) < job.min_gpus:
                return holder
        return None

    def shown(self, state: JobState, now_s: float) -> JobState | None:
        """As a policy is to see it: not at all while a budget holds it, no wider than its own budget pays to leave."""
        job, now = state.job, max(state.gpus, 0 if state.shape is None else state.shape.gpus)
        if not now and self.held_by(job, now_s) is not None:
            return None
        if Holder(Level.JOB, job.id) not in self.allowed:
            return state
        room = self._room(job, now_s)
        fits = {pool: gpus for pool, gpus in room.items() if now or gpus >= job.min_gpus}
        most = min(job.max_gpus, now + min(fits.values(), default=0))
        pools = job.pools if len(fits) == len(room) else tuple(fits)
        if most == job.max_gpus and pools == job.pools:
            return state
        return replace(state, job=replace(job, gpus=min(job.gpus, most), max_gpus=most, pools=pools))

    def _room(self, job: Job, now_s: float) -> dict[str, int]:
        """GPUs whose leaving its own budget can pay for, in each pool where it may run."""
        own, now_us = Holder(Level.JOB, job.id), microseconds(now_s)
        left = max(0, self.left(own, now_us) - (KEPT_BACK - 1) * self.reserved(own, now_us))
        pools, found = self._supply.pools, {}
        for name in job.pools or pools:
            if name in pools:
                offers = [self._supply.offers[offer_id] for offer_id in pools[name].offer_ids]
                per_gpu = KEPT_BACK * max(ending_grains(offer, 1) for offer in offers)
                found[name] = left // per_gpu if per_gpu else job.max_gpus
        return found

    # ------------------------------------------------------------------ how it ends

    def end(self, jobs: Mapping[str, JobState], promised: Iterable[str], now_s: float) -> Steps:
        """The spent budgets, the jobs that have to leave because of them, and the time of the next look."""
        found, now_us, promised = Steps(), microseconds(now_s), list(promised)
        for holder, allowance in list(self.allowed.items()):
            if holder == ORG:
                continue
            left, burn = self.left(holder, now_us), self.shares.burn(holder, now_us)
            lasts_us = left // burn if burn else math.inf
            if left > 0 and lasts_us > 1:
                found.wake(now_s, lasts_us)
                continue
            self.allowed[holder] = replace(allowance, spent=True)
            paid = dict.fromkeys([*self.shares.jobs(holder), *promised])
            stays = [j for j in paid if jobs[j].phase is not Phase.STOPPING and holder in self.limited(jobs[j].job)]
            found.leave |= dict.fromkeys(stays)
            if stays and not allowance.spent:
                go = "it stops, and goes" if holder.level is Level.FILE else "its jobs stop, and go"
                found.tell.append(f"{self.words(holder)}: {go} on {self.resumes(holder)}")
        return found

    # ------------------------------------------------------------------ in words

    def words(self, holder: Holder) -> str:
        """`team vision has spent its USD 500.00 a month`."""
        allowance = self.allowed[holder]
        if holder.level is Level.FILE:
            return f"{holder} has spent the budget of its file"
        kept = ", but for what stopping takes" if holder.level is Level.JOB else ""
        return f"{holder} has spent its {amount_text(allowance.amount, allowance.period)}{kept}"

    def resumes(self, holder: Holder) -> str:
        """When there is money again."""
        ends = self.allowed[holder].ends
        return "when it is given more" if ends is None else f"at {calendar_text(ends)}, or when it is given more"

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "shares": self.shares.facts(),
            "allowed": [[to_plain(holder), to_plain(each)] for holder, each in self.allowed.items()],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.shares.restore(facts["shares"])
        for holder, allowance in facts["allowed"]:
            self.allowed[from_plain(Holder, holder)] = from_plain(Allowance, allowance)
