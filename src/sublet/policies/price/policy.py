"""The price of time: every job takes the shape in which its time and its rent together cost least."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sublet.domain.job import Job
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.planning.menu import menu_of, sites_of
from sublet.planning.value_of_time import TRUSTED_H, price_of_time
from sublet.policies.price.plan import WorkBelief, priced_plan
from sublet.policies.price.worth import HURRY, hour_worth

__all__ = ["Price", "hour_usd_of", "in_a_hurry"]


@dataclass(frozen=True, slots=True)
class Price:
    """Sublet's own: one price of time that meets the budget, one surcharge per pool that is short."""

    review_s: float = 60.0  # how often running jobs are looked at when nothing is short
    patience_s: float = 86_400.0  # when not all can run, who came longer ago than this comes first

    trusted_h: float = TRUSTED_H  # a forecast weighs as much as having counted for so long
    hour_usd: float | None = None  # what an hour of a job is worth where no budget says so; None = as on demand
    knows: WorkBelief = WorkBelief.WORK  # of the work that jobs have left, on a cluster that is shared out by it

    def decide(self, snapshot: Snapshot) -> Plan:
        """Learn the price of time from what arrives and what is spent; then let each job choose."""
        return priced_plan(
            snapshot,
            lambda sites: price_of_time(snapshot, sites, self.trusted_h),
            review_s=self.review_s,
            patience_s=self.patience_s,
            knows=self.knows,
            hour_usd=self.hour_usd,
        )


def hour_usd_of(policy: Price, snapshot: Snapshot, job: Job) -> float:
    """What an hour of a job that comes now is worth to the policy, its weight included."""
    sites = sites_of(snapshot)
    value = price_of_time(snapshot, sites, policy.trusted_h).usd_per_h
    worth = None if job.hurry else hour_worth(snapshot, policy.hour_usd)
    return job.weight * (value if worth is None else min(value, worth(menu_of(job, sites))))


def in_a_hurry(policy: Policy) -> Policy:
    """The same policy where time counts for more than any rent; the others know no value of time to begin with."""
    return replace(policy, hour_usd=HURRY) if isinstance(policy, Price) else policy
