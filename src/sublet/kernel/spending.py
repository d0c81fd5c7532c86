"""A look at all budgets after every event: nodes to give up, jobs to turn out, or when to look again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublet.domain import events as news
from sublet.domain.actions import SetTimer, StopJob, TellUser
from sublet.domain.timers import CheckPurse, PeriodOver
from sublet.kernel.allowances import Before, Steps
from sublet.kernel.supply import Supply
from sublet.kernel.tenancy import Tenancy


class Spending:
    """The budget of all, and the tree beneath it. Orders go to `tenancy.orders`; True = a plan is called for."""

    def __init__(self, supply: Supply, tenancy: Tenancy) -> None:
        self.spent_s: float | None = None  # when the first budget will be spent at today's burn
        self._period_s: float | None = None  # when the next period of a budget begins
        self._look_s: float | None = None  # when the tree is to be looked at again, if nothing changes before
        self._supply, self._tenancy, self._purses = supply, tenancy, tenancy.budgets

    def adjust_supply(self, now_s: float) -> None:
        """Rent and give back; jobs in the way leave."""
        self._tenancy.orders += self._supply.adjust(now_s)
        for node in self._supply.to_clear:
            self._supply.mark_noticed(node)  # it takes no more work, and goes when the last has left
            self._tenancy.clear_node(node)

    def pass_time(self, event: news.Event) -> Before | None:
        """Before it is heard: what was spent until now was at the prices, and out of the budgets, of until now.

        How it was before the first period that is over by then; None = none is.
        """
        purses, before = self._purses, None
        if not purses.shares.counts:
            return None
        while (over_s := purses.next_end_s()) is not None and over_s <= event.at_s:
            before = before or purses.now()
            purses.roll(over_s)
        if isinstance(event, news.PriceChanged | news.PriceDoubted | news.OffersChanged):
            purses.shares.settle(event.at_s)
        return before

    def watch(self, now_s: float) -> bool:
        """Give nodes up and turn jobs out in time; until then, be woken when it is time."""
        tenancy, wakes, stepped = self._tenancy, list[float | None](), False
        if self._supply.budget.purse is not None and (steps := _end_total_in_steps(self._supply, now_s)) is not None:
            wakes.append(steps.wake_s)
            if steps.wake_s is None:
                for job_id in sorted(steps.leave.keys() & tenancy.active.keys()):
                    tenancy.settle(tenancy.promise(tenancy.active[job_id], None))
                self._heed(steps, now_s)
                stepped = True
        if self._purses.shares.counts:
            stepped = self._watch_tree(wakes, now_s) or stepped
        wake_s = min((at_s for at_s in wakes if at_s is not None), default=None)
        if wake_s is not None and wake_s != self.spent_s:
            self.spent_s = wake_s
            tenancy.orders.append(SetTimer(CheckPurse(), wake_s))
        return stepped

    def _watch_tree(self, wakes: list[float | None], now_s: float) -> bool:
        """Nothing is to be found out while all hold what they did, at the price that it had, and no time is up."""
        tenancy, purses = self._tenancy, self._purses
        early = self._look_s is None or now_s < self._look_s
        stops = any(isinstance(order, StopJob) for order in tenancy.orders)
        if early and not (stops or purses.shares.changed or purses.shares.any_leaves()):
            wakes.append(self._look_s)
            return False
        purses.shares.tell_to_leave(tenancy.jobs, now_s)
        steps = purses.end(tenancy.jobs, tenancy.active, now_s)
        purses.shares.changed, self._look_s = bool(steps.leave), steps.wake_s
        wakes.append(steps.wake_s)
        for job_id in steps.leave:
            tenancy.evict(job_id)
        if steps.leave:
            purses.shares.tell_to_leave(tenancy.jobs, now_s)
            self._heed(steps, now_s)
        if (over_s := purses.next_end_s()) is not None and over_s != self._period_s:
            self._period_s = over_s
            tenancy.orders.append(SetTimer(PeriodOver(), over_s))
        return bool(steps.leave)

    def _heed(self, steps: Steps, now_s: float) -> None:
        self.adjust_supply(now_s)
        self._tenancy.orders += [TellUser(text) for text in steps.tell]

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"spent_s": self.spent_s, "period_s": self._period_s, "look_s": self._look_s}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.spent_s = facts["spent_s"]
        self._period_s, self._look_s = (
            facts.get("period_s"),
            facts.get("look_s"),
        )  # not before there were trees


def _end_total_in_steps(supply: Supply, now_s: float) -> Steps | None:
    """The end of the total budget: give nodes up in time; None = there is nothing to be done, nor to wait for."""
    purse = supply.purse
    left, burn = purse.until_next_step(now_s), supply.ledger.outflow().micro_usd_per_h
    if left is None or purse.broke or (burn == 0 and not purse.is_exceeded(now_s)):
        return None
    lasts_us = left.grains // burn if burn else 0  # its last node may have ended without a controller
    if lasts_us > 1:
        return Steps(wake_s=now_s + (lasts_us - 1) / 1e6)
    if purse.giving_up and not purse.is_overdue(now_s) and not purse.is_exceeded(now_s):
        return None  # the reserve of the others lasts until these are gone; then we look again
    found = Steps(leave={job_id: None for node in supply.give_up_half(now_s) for job_id in node.jobs})
    if purse.most_nodes == 0:
        found.tell.append(f"{supply.budget.purse} are spent: all jobs stop, and can be resumed")
    return found
