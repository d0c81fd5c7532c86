"""Who has the fastest that there is need not be asked again until something happens; its twin asks at every review."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.domain.plan import Plan, Snapshot
from sublet.perf.speedup import Amdahl
from sublet.policies.price.decision import WorkBelief
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

REVIEW_S = 600.0
OWN = {"plans": 0, "seconds": 0.0, "jobs_per_s": 0.0}  # of each run, and not of what became of the jobs
OWNED = Cloud(offers=(an_offer("o", gpus=8, market=Market.ON_DEMAND),), limits={"o": Limit(min_nodes=1, max_nodes=1)})


@dataclass(frozen=True)
class Reviewing:
    """`price`, asked again whenever anybody is there."""

    policy: Price

    def decide(self, snapshot: Snapshot) -> Plan:
        plan = self.policy.decide(snapshot)
        if not snapshot.active and not len(snapshot.waiting):
            return plan
        return replace(plan, ask_again_s=(math.floor(snapshot.now_s / REVIEW_S) + 1) * REVIEW_S)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(1, 12), st.sampled_from([0.3, 0.9, 1.0])),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([WorkBelief.DECLARED, WorkBelief.LEARNED, WorkBelief.PAST]),
)
def test_reviews_of_jobs_that_are_content_would_change_nothing(wanted, knows):
    jobs = [
        a_job(
            f"j{at}", submit_s=900.0 * came, work=600.0 * size, gpus=1, max_gpus=most, speed=Amdahl(parallel=parallel),
            deadline_s=None if at % 2 else 900.0 * came + 7200.0, restart_s=30.0,
        )
        for at, (came, size, most, parallel) in enumerate(sorted(wanted))
    ]  # fmt: skip
    policy = Price(knows=knows)
    ours, twin = (simulate(jobs, each, OWNED).metrics for each in (policy, Reviewing(policy)))
    assert replace(ours, **OWN) == replace(twin, **OWN)


def again_s(*jobs, **facts):
    driver = Driver(OWNED.offers, limits=OWNED.limits, **facts)
    driver.submit(*jobs)
    driver.settle(Price())
    return Price().decide(driver.kernel.snapshot()).ask_again_s


def test_nobody_is_woken_while_all_have_the_fastest_that_there_is():
    assert again_s(a_job("one", max_gpus=3), a_job("two", max_gpus=4)) is None


@pytest.mark.parametrize(
    "jobs",
    [
        [a_job("one", max_gpus=8), a_job("two", max_gpus=8)],  # one could be faster if the other were done
        [a_job(f"j{at}", min_gpus=4, gpus=4, max_gpus=4) for at in range(3)],  # one waits
        [a_job("one", max_gpus=3, purse_left_usd=1.0)],  # what it has left becomes less
    ],
)
def test_who_could_want_something_else_later_is_asked_again(jobs):
    assert again_s(*jobs) is not None
