"""Whatever a market does, a deadline is kept where on demand is there; and nothing is decided by what is to come."""

from __future__ import annotations

import math
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.policies.regions.policy import Regions
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import a_job, an_offer
from sublet_lab.studies.regions.rivals import GreedySpot, UniformProgress
from sublet_lab.studies.regions.skynomad import SkyNomad

ZONES = ("east-a", "east-b", "west-a")
HOUR_S = 3600.0
EXAMPLES = 12

changes = st.lists(
    st.one_of(
        st.builds(AvailabilityChanged, st.floats(0.0, 12 * HOUR_S), st.sampled_from(ZONES), st.sampled_from([0, 0, 1])),
        st.builds(
            PriceChanged,
            st.floats(0.0, 12 * HOUR_S),
            st.sampled_from(ZONES),
            st.builds(Price, st.integers(1, 4_000_000)),
        ),
    ),
    max_size=30,
)
jobs = st.builds(
    lambda work_h, slack_h, restart_s, every_s: a_job(
        work=work_h * HOUR_S,
        gpus=1,
        deadline_s=(work_h + slack_h) * HOUR_S + restart_s + 2.0,  # what the first start takes is not slack
        restart_s=restart_s,
        checkpoint_every_s=every_s,
    ),
    work_h=st.floats(0.5, 6.0),
    slack_h=st.floats(0.0, 5.0),
    restart_s=st.floats(0.0, 1800.0),
    every_s=st.sampled_from([1.0, 600.0, 2 * HOUR_S, math.inf]),
)


def run(job, market, policy, *, checked=True):
    """In a cloud that says nothing of what it has, and takes without a notice; all that was decided, with its time."""
    spot = [
        an_offer(zone, gpus=1, pool=zone, region=zone[:4], hazard_per_h=0.2, minimum_billing_s=60.0) for zone in ZONES
    ]
    sure = an_offer("sure", gpus=1, usd_per_h="3", pool="sure", region="east", market=Market.ON_DEMAND)
    at_first = [AvailabilityChanged(0.0, zone, 0) for zone in ZONES]
    told = sorted([*at_first, *market], key=lambda change: change.at_s)
    cloud = Cloud(offers=[*spot, sure], physics=Physics(notice_s=0.0, says_supply=False), market=lambda: told)
    orders = []
    until_s = job.deadline_s + 1.0
    found = simulate(
        [job],
        policy,
        cloud,
        checked=checked,
        until_s=until_s,
        watch=lambda event, made: orders.append((event.at_s, *made)),
    )
    return found.record.jobs[job.id].finish_s, orders


@settings(max_examples=EXAMPLES, deadline=None)
@given(jobs, changes)
def test_no_deadline_is_missed_while_on_demand_is_there(job, market):
    ended_s, _ = run(job, market, Regions())
    assert ended_s is not None
    assert ended_s <= job.deadline_s


@pytest.mark.parametrize("make", [GreedySpot, UniformProgress, SkyNomad])
@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(job=jobs, market=changes)
def test_rivals_have_the_same_last_call(make, job, market):
    ended_s, _ = run(job, market, make(), checked=False)
    assert ended_s is not None
    assert ended_s <= job.deadline_s


@settings(max_examples=EXAMPLES, deadline=None)
@given(jobs, changes, changes, st.floats(0.0, 6 * HOUR_S))
def test_what_is_to_come_changes_no_decision_of_today(job, market, other, now_s):
    """The same past and another future: the same orders until now."""
    past = [change for change in market if change.at_s <= now_s]
    futures = [[change for change in each if change.at_s > now_s] for each in (market, other)]
    (_, first), (_, second) = (run(job, [*past, *future], Regions(), checked=False) for future in futures)
    assert list(takewhile(lambda made: made[0] <= now_s, first)) == list(
        takewhile(lambda made: made[0] <= now_s, second)
    )
