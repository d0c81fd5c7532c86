"""The price of time: every job takes the shape in which its time and its rent together cost least."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import HURRY, TRUSTED_H, value_of_time
from sublet.policies.price.decision import Decision, WorkBelief
from sublet.policies.price.plan import priced_plan

__all__ = ["Price", "in_a_hurry"]


@dataclass(frozen=True, slots=True)
class Price:
    """Sublet's own: one price of time that meets the budget, one surcharge per pool that is short."""

    review_s: float = 60.0  # how often running jobs are looked at when nothing is short
    patience_s: float = 86_400.0  # when not all can run, who came longer ago than this comes first

    trusted_h: float = TRUSTED_H  # a forecast weighs as much as having counted for so long
    hour_usd: float | None = None  # what an hour of a job is worth where no budget says so; None = as on demand
    knows: WorkBelief = WorkBelief.DECLARED  # of the work that jobs have left, on a cluster that is shared out by it

    def decide(self, snapshot: Snapshot) -> Plan:
        """Learn the price of time from what arrives and what is spent; then let each job choose."""
        terms = Terms.from_snapshot(snapshot)
        value = value_of_time(terms, self.trusted_h, self.hour_usd)
        return priced_plan(
            Decision.read(terms, value, review_s=self.review_s, patience_s=self.patience_s, knows=self.knows)
        )


def in_a_hurry(policy: Policy) -> Policy:
    """The same policy where time counts for more than any rent; the others know no value of time to begin with."""
    return replace(policy, hour_usd=HURRY) if isinstance(policy, Price) else policy
