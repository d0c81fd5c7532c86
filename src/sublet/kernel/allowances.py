"""Purses of teams, users and jobs beneath the one of all: what each may spend, and how its end comes in steps.

A purse pays the shares of its jobs (shares.py), and with each of them those above it do. The promise at every level and
at every moment: what is spent in this period, with what it may cost until everybody who is paid from it has left, is
within the purse. So GPUs are given to a job only where all that pay for it can pay for the job to leave again
(`covers`), and jobs are told to leave while that is so (`end_in_steps`); who is told too late is paid for as if it had
been told in time (late.py). The rest of a tree is the purse of all (purse.py), which pays whatever is rented.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sublet.domain.budget import Budget
from sublet.domain.events import PurseSet
from sublet.domain.job import Job
from sublet.domain.money import Money, microseconds
from sublet.domain.plan import JobState, Phase
from sublet.domain.purses import ORG, Holder, Level, Period, amount_text, calendar_text
from sublet.domain.shape import Placement
from sublet.kernel.shares import Shares, payers
from sublet.kernel.supply import Supply
from sublet.kernel.values_json import from_plain, to_plain

__all__ = ["Allowance", "Before", "PurseTree", "Steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one may spend: `amount`, beyond what was spent when this period began."""

    amount: Money
    period: Period | None = None
    opening: int = 0  # grains spent before
    ends: int | None = None  # of the period, in Unix time
    unix_0_s: float = 0.0  # what the calendar said when the kernel's clock was 0
    most: int | None = None  # it runs out: no more jobs than this hold GPUs from now on; 0 = it is spent
    bound: int = 0  # grains that are never exceeded: the limit, or what could not be helped when it was set

    @property
    def limit(self) -> int:
        """In grains since everything began."""
        return self.opening + self.amount.grains

    @property
    def ends_s(self) -> float | None:
        """Of the period, by the kernel's clock."""
        return None if self.ends is None else self.ends - self.unix_0_s


@dataclass(slots=True)
class Steps:
    """What a look at all purses leads to."""

    leave: dict[str, None] = field(default_factory=dict)  # jobs
    tell: list[str] = field(default_factory=list)  # what users should know
    wake_s: float | None = None  # when to look again, if nothing happens before

    def wake(self, now_s: float, lasts_us: float) -> None:
        """One of them lasts so long."""
        if lasts_us < math.inf:
            wake_s = now_s + (lasts_us - 1) / 1e6
            self.wake_s = wake_s if self.wake_s is None else min(self.wake_s, wake_s)


Before = tuple[dict[Holder, Allowance], bool, Budget, int | None, bool]


class PurseTree:
    """All purses but what the purse of all promises of itself. Nothing is counted until the first is set."""

    def __init__(self, supply: Supply) -> None:
        self.shares = Shares(supply.cluster, supply.ledger)
        self.allowed: dict[Holder, Allowance] = {}
        self.denied: dict[str, None] = {}  # jobs that could not get GPUs for want of money, in this event
        self._aside: dict[str, float] = {}  # jobs that were denied GPUs, and when
        self.as_recorded = False  # whoever got GPUs has them: another version of the kernel gave them out
        self._supply = supply

    # ------------------------------------------------------------------ what is set, and when a period is over

    def set(self, event: PurseSet) -> None:
        """As the user says. What was spent in a period that goes on stays spent."""
        holder, old = event.holder, self.allowed.pop(event.holder, None)
        self.shares.changed = True
        if holder == ORG and event.period is None:  # as any budget: it counts from the beginning
            self._supply.refill(replace(self._supply.budget, purse=event.amount, until_s=None))
            return
        if event.amount is None:
            return
        now_us = microseconds(event.at_s)
        goes_on = old is not None and old.period is event.period
        opening = 0 if event.period is None else self.spent(holder, now_us)
        new = Allowance(
            amount=event.amount,
            period=event.period,
            opening=old.opening if old is not None and goes_on else opening,
            ends=None if event.period is None else event.period.ends(event.unix_s),
            unix_0_s=event.unix_s - event.at_s,
        )
        self.allowed[holder] = self._bound(holder, new, now_us)
        self._fill(holder)

    def _bound(self, holder: Holder, new: Allowance, now_us: int) -> Allowance:
        helpless = 0 if holder == ORG else self.spent(holder, now_us) + self.shares.ending(holder, now_us)
        return replace(new, bound=max(new.limit, helpless))

    def _fill(self, holder: Holder) -> None:
        """The purse of all is one of the budget, counted from the beginning."""
        if holder == ORG:
            self._supply.refill(self.in_force(self._supply.budget))

    def in_force(self, budget: Budget) -> Budget:
        """With the purse that this period has, where the purse of all has periods: no other budget changes that."""
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
            ends, opening = old.period.ends(old.ends), self.spent(holder, now_us)
            new = replace(old, opening=opening, ends=ends, most=None)
            over = old.bound > old.limit
            self.allowed[holder] = self._bound(holder, new, now_us) if over else replace(new, bound=new.limit)
            self._fill(holder)

    def roll_back(self, before: Before) -> None:
        """As it was."""
        supply = self._supply
        self.allowed, self.shares.changed, supply.purse.budget, supply.purse.most_nodes, supply.changed = before

    def next_end_s(self) -> float | None:
        """Of a period."""
        return min((each.ends_s for each in self.allowed.values() if each.ends_s is not None), default=None)

    def forget(self, job: Job) -> None:
        """It has ended."""
        own = Holder(Level.JOB, job.id)
        for each in (own, Holder(Level.FILE, job.id)):
            self.allowed.pop(each, None)
        self.shares.forget(own)
        self._aside.pop(job.id, None)
        self.denied.pop(job.id, None)

    def end_by(self, node_id: str, end_s: float | None) -> None:
        """A node was gone by then, where anybody knows when."""
        if self.shares.counts and end_s is not None:
            self.shares.end_by(node_id, microseconds(end_s))

    # ------------------------------------------------------------------ sums

    def spent(self, holder: Holder, now_us: int) -> int:
        """Grains since the tree counts; of all, since everything began."""
        return self._supply.ledger.spent(now_us / 1e6).grains if holder == ORG else self.shares.spent(holder, now_us)

    def left(self, holder: Holder, now_us: int, times: int) -> int:
        """Grains beyond what is spent and what leaving may cost, or as long several times."""
        return self.allowed[holder].limit - self.spent(holder, now_us) - self.shares.ending(holder, now_us, times)

    def limited(self, job: Job) -> list[Holder]:
        """Those who pay for it and may not spend without end, but for the purse of all."""
        return [holder for holder in (*payers(job), Holder(Level.FILE, job.id)) if holder in self.allowed]

    # ------------------------------------------------------------------ who may have GPUs

    def covers(self, job: Job, placement: Placement, held: Mapping[str, int], now_s: float) -> bool:
        """Whether it may move there from what it holds; if not, it is noted among the denied."""
        if not self.allowed or self.as_recorded:
            return True
        now_us = microseconds(now_s)
        added = self.shares.added(job.id, placement, held)
        for holder in self.limited(job):
            most = self.allowed[holder].most
            full = most is not None and not held and len(self.shares.jobs(holder)) >= most
            needed = 0 if holder.level is Level.FILE else added
            if full or self.left(holder, now_us, 1) < needed:
                self.denied[job.id] = None
                return False
        return True

    def put_aside(self, job_id: str, now_s: float) -> bool:
        """It was denied GPUs, for the first time at this instant."""
        first = self._aside.get(job_id) != now_s
        self._aside[job_id] = now_s
        return first

    def is_aside(self, job_id: str, now_s: float) -> bool:
        """It was denied GPUs at this instant: to ask for it again would be in vain."""
        return self._aside.get(job_id) == now_s

    # ------------------------------------------------------------------ how it ends

    def end_in_steps(self, jobs: Mapping[str, JobState], now_s: float) -> Steps:
        """Whom to turn out now, and when to look again.

        Twice what leaving may cost is kept back for each job: when that is all that is left, half of the jobs leave,
        and the second part pays for the others meanwhile. Of the last one, or while some are leaving, once is enough.
        """
        found, now_us = Steps(), microseconds(now_s)
        for holder, allowance in list(self.allowed.items()):
            if holder.level is Level.FILE:
                self._end_at_the_last_cent(holder, jobs, now_s, found)
            if holder.level in (Level.ORG, Level.FILE):
                continue
            stays = [j for j in self.shares.jobs(holder) if jobs[j].phase is not Phase.STOPPING]
            if not stays:
                continue
            leaving = self.shares.is_leaving(holder, now_us)
            burn = self.shares.burn(holder, now_us)
            at_once_us = _lasts_us(self.left(holder, now_us, 1), burn)  # until all have to leave
            lasts_us = at_once_us if leaving or len(stays) == 1 else _lasts_us(self.left(holder, now_us, 2), burn)
            if lasts_us <= 1:
                every = at_once_us <= 1
                stays.sort(key=lambda job_id: -jobs[job_id].seq)  # who came last goes first
                victims = stays if every else stays[: (len(stays) + 1) // 2]
                found.leave |= dict.fromkeys(victims)
                self.allowed[holder] = replace(allowance, most=len(stays) - len(victims))
                if every:
                    found.tell.append(f"{self.words(holder)}: its jobs stop, and go on {self.resumes(holder)}")
                    continue
                lasts_us = at_once_us
            found.wake(now_s, lasts_us)
        return found

    def _end_at_the_last_cent(self, holder: Holder, jobs: Mapping[str, JobState], now_s: float, found: Steps) -> None:
        """A job's file keeps nothing back here: its controller stops it in time, and this is where it must be gone."""
        now_us, job_id = microseconds(now_s), holder.name
        if not self.shares.jobs(holder):
            return
        lasts_us = _lasts_us(self.left(holder, now_us, 1), self.shares.burn(holder, now_us))
        if lasts_us > 1:
            found.wake(now_s, lasts_us)
            return
        self.shares.gone_us.setdefault(job_id, now_us)
        if jobs[job_id].phase is not Phase.STOPPING:
            found.leave[job_id] = None
            self.allowed[holder] = replace(self.allowed[holder], most=0)
            found.tell.append(f"{self.words(holder)}: it stops, and goes on {self.resumes(holder)}")

    # ------------------------------------------------------------------ in words

    def words(self, holder: Holder) -> str:
        """`team vision has spent its USD 500.00 a month`."""
        allowance = self.allowed[holder]
        if holder.level is Level.FILE:
            return f"{holder} has spent the budget of its file"
        return f"{holder} has spent its {amount_text(allowance.amount, allowance.period)}, but for what stopping takes"

    def resumes(self, holder: Holder) -> str:
        """When there is money again."""
        ends = self.allowed[holder].ends
        return "when it is given more" if ends is None else f"at {calendar_text(ends)}, or when it is given more"

    def forget_steps(self) -> None:
        """Look at everything anew."""
        self.allowed = {holder: replace(each, most=None) for holder, each in self.allowed.items()}

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "shares": self.shares.facts(),
            "aside": dict(self._aside),
            "allowed": [[to_plain(holder), to_plain(each)] for holder, each in self.allowed.items()],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.shares.restore(facts["shares"])
        self._aside = dict(facts["aside"])
        for holder, allowance in facts["allowed"]:
            self.allowed[from_plain(Holder, holder)] = from_plain(Allowance, allowance)


def _lasts_us(left: int, burn: int) -> float:
    """How long it lasts, in whole microseconds; for ever where nothing is spent."""
    return left // burn if burn else (math.inf if left >= 0 else 0)
