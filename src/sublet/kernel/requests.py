"""When a plan is called for: by what has happened, by the clock, or because the last one was refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sublet.domain.actions import Action, RefusePlan, SetTimer
from sublet.domain.budget import Budget
from sublet.domain.plan import JobState
from sublet.domain.timers import PlanAgain

MOST_PLANS_AT_ONCE = 1_000
REFUSED_AGAIN_S = 10.0  # until a policy whose plan was refused is asked again, if nothing happens before
REFUSED_AT_MOST_S = 960.0  # twice as long after each further one in a row, up to this: as for an offer
SHORTEST_TIMER_S = 0.001  # a policy that asks to be asked again at once must not stop the clock
MOST_OUTRUN = 2  # timers in a row that may outrun a plan under way: of the one before, and one whose time went by


class PlanRequests:
    """At most one plan is asked for at a time; what it did not see calls for the next one."""

    def __init__(self) -> None:
        self.is_open = False  # a plan was asked for, and is not here yet
        self.since = 0  # events that had been heard at the last one that calls for a plan; 0 = none does
        self.woken = False  # the time that a plan asked for has come, and no plan was taken since
        self._wake_s: float | None = None
        self._planned_s, self._plans_now = -1.0, 0  # when the last plan was made, and how many at that instant
        self._refused = 0  # plans in a row
        self._outrun = 0  # timers in a row that rang while a plan was being made

    @property
    def put_off(self) -> bool:
        """The last plan was refused, and a timer is set to ask for another."""
        return self._refused > 0 and self._wake_s is not None

    def count(self, now_s: float) -> RefusePlan | None:
        """The plan is here; refused where a policy that never comes to rest would stop the clock."""
        self.is_open = False
        self._plans_now = self._plans_now + 1 if now_s == self._planned_s else 1
        self._planned_s = now_s
        if self._plans_now > MOST_PLANS_AT_ONCE:
            return RefusePlan("plans at one instant", self._plans_now, MOST_PLANS_AT_ONCE)
        return None

    def take(self, *, stale: bool) -> None:
        """The plan is carried out; a stale one did not see everything, and the next is called for."""
        self._refused = 0
        if not stale:
            self.since, self.woken, self._outrun = 0, False, 0

    def refuse(self, refusal: RefusePlan, now_s: float, *, stale: bool) -> list[Action]:
        """Wait for something to happen, and ask again if nothing does: a policy asked at once would say the same.

        Unless it has happened already: what a stale one did not see calls for the next plan, as if it had been taken.
        """
        if stale and self._plans_now <= MOST_PLANS_AT_ONCE:
            return [refusal]
        again_s = now_s + min(REFUSED_AGAIN_S * 2.0**self._refused, REFUSED_AT_MOST_S)
        self._refused += 1
        self.since = 0
        if self._wake_s is not None and now_s < self._wake_s <= again_s:
            return [refusal]
        self._wake_s = again_s
        return [refusal, SetTimer(PlanAgain(), again_s)]

    def ask_again(self, at_s: float, now_s: float) -> list[Action]:
        """A plan that was taken wants another one then."""
        if at_s == self._wake_s:
            return []
        self._wake_s = max(at_s, now_s + SHORTEST_TIMER_S)
        return [SetTimer(PlanAgain(), self._wake_s)]

    def wake(self, now_s: float) -> bool:
        """The timer rings; False = it was set anew since, or rings for a policy that thinks longer than it waits.

        Such a policy would never be told that its plan saw everything, and a kernel without any news never come to
        rest: the plan under way counts, and says itself when it wants the next.
        """
        if self._wake_s is None or now_s < self._wake_s:
            return False
        self._wake_s, self.woken = None, True
        self._outrun = self._outrun + 1 if self.is_open else 0
        return self._outrun <= MOST_OUTRUN

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "planning": self.is_open,
            "changed": self.since,
            "wake_s": self._wake_s,
            "woken": self.woken,
            "planned": [self._planned_s, self._plans_now],
            "refused": self._refused,
            "outrun": self._outrun,
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.is_open, self.since = facts["planning"], facts["changed"]
        self._wake_s, self.woken = facts["wake_s"], facts["woken"]
        self._planned_s, self._plans_now = facts["planned"]
        self._refused = facts.get("refused", 0)  # not in snapshots before version 3
        self._outrun = facts.get("outrun", 0)  # not before version 7


def frees_money(budget: Budget, active: Iterable[JobState], *, waiting: int) -> bool:
    """A node that is gone leaves its reserve, and its part of the rate, to jobs that want it."""
    if budget.burn is None:
        return budget.purse is not None and waiting > 0
    return waiting > 0 or any(state.gpus < state.job.max_gpus for state in active)
