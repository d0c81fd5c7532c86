"""Plans for a cluster on which nobody wants anything else are those that the table of all shapes would give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import JobChanged
from sublet.domain.offer import Market
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear
from sublet.planning.jobs import read_jobs
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import HURRY, value_of_time
from sublet.policies.price import policy as planning
from sublet.policies.price.decision import Decision, WorkBelief
from sublet.policies.price.policy import Price
from sublet.policies.price.settled import settled
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.strategies import clouds, jobs
from sublet.testing.values import a_job, an_offer

OFFER = an_offer("o", gpus=8, market=Market.ON_DEMAND)
OWNED = Cloud(offers=(OFFER,), limits={"o": Limit(min_nodes=1, max_nodes=1)})
EXTENDED = Cloud(
    offers=(OFFER, replace(OFFER, id="more")), limits={"o": Limit(min_nodes=1, max_nodes=1), "more": Limit()}
)
TWO_POOLS = Cloud(
    offers=(OFFER, replace(OFFER, id="p", pool="p")),
    limits={"o": Limit(min_nodes=1, max_nodes=1), "p": Limit(min_nodes=1, max_nodes=1)},
)
RENTED = Cloud(offers=(OFFER,), limits={"o": Limit(max_nodes=1)})


PHASED = Phased(ends=(1800.0, 7200.0), rates=lambda gpu, spread: (1.0, 2.0))


class Doubted(Linear):
    """Believed to be linear."""

    __slots__ = ()

    def doubt(self, gpu, spread):
        return 0.1


class BothWays:
    """`price`, which asks for each plan twice: as it does, and with every shape on the table."""

    def __init__(self, policy):
        self.policy, self.calm = policy, 0

    def decide(self, snapshot):
        found = []

        def noting(*facts):
            found.append(settled(*facts))
            return found[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "settled", noting)
            plan = self.policy.decide(snapshot)
            patch.setattr(planning, "settled", lambda *_: None)
            twin = self.policy.decide(snapshot)
        self.calm += any(each is not None for each in found)
        assert replace(plan, weighed={}, warnings=dict(plan.warnings)) == replace(
            twin, weighed={}, warnings=dict(twin.warnings)
        )
        assert [(job, each.rows()) for job, each in plan.weighed.items()] == [
            (job, each.rows()) for job, each in twin.weighed.items()
        ]
        return plan


asked = st.builds(
    Price, knows=st.sampled_from(WorkBelief), hour_usd=st.sampled_from([None, HURRY, 3.0]), review_s=st.just(60.0)
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.integers(1, 40), st.sampled_from([1, 1, 2, 3, 12]), st.sampled_from([0.3, 0.9, 1.0]),
            st.sampled_from([None, 300.0, 7200.0]), st.sampled_from([0.0, 30.0]),
        ),
        min_size=1, max_size=8,
    ),
    asked,
)  # fmt: skip
def test_a_cluster_of_our_own_is_shared_out_alike(wanted, policy):
    come = [
        a_job(
            f"j{at}", submit_s=900.0 * came, work=600.0 * size, gpus=1, max_gpus=most, speed=Amdahl(parallel=parallel),
            deadline_s=soon and 900.0 * came + soon, restart_s=restart_s,
        )
        for at, (came, size, most, parallel, soon, restart_s) in enumerate(wanted)
    ]  # fmt: skip
    simulate(come, BothWays(policy), OWNED)


@given(jobs(), clouds(), asked)
def test_any_cloud_is_shared_out_alike(come, cloud, policy):
    simulate(come, BothWays(policy), cloud)


def test_most_plans_for_narrow_jobs_are_made_without_the_table():
    come = [a_job(f"j{at}", submit_s=60.0 * at, work=900.0, gpus=1, max_gpus=1) for at in range(40)]
    policy = BothWays(Price())
    simulate(come, policy, replace(OWNED, limits={"o": Limit(min_nodes=5, max_nodes=5)}))
    assert policy.calm >= 40


def look(cloud, *come, **otherwise):
    """What it makes of jobs that have what `price` gave them, and of the last, which has only just come."""
    driver = Driver(cloud.offers, limits=cloud.limits)
    driver.submit(*come[:-1])
    driver.settle(Price())
    driver.submit(come[-1])
    snapshot = driver.kernel.snapshot()
    terms = replace(Terms.from_snapshot(snapshot), **otherwise)
    waiting = snapshot.waiting.by(lambda state: state.seq)
    asked = read_jobs([*snapshot.active.values(), *waiting], terms.sites, terms.now_s)
    value = value_of_time(terms, hour_usd=None)
    decision = Decision.read(terms, value.over, review_s=60.0)
    return settled(replace(decision, jobs=asked, value_J=value.of_all(asked)), asked)


WIDE, NARROW = a_job("one", gpus=3, max_gpus=3), a_job("two", gpus=1, max_gpus=1)


@pytest.mark.parametrize("wide", [WIDE, replace(WIDE, gpus=7, max_gpus=7)])  # the last GPU is theirs, too
def test_who_has_but_one_shape_is_a_newcomer_and_all_others_stay(wide):
    found = look(OWNED, wide, NARROW)
    assert [state.job.id for state in found.newcomers.jobs.states] == ["two"]
    assert [found.newcomers.table.menus[0].shapes[at].gpus for at in found.column_N] == [1]


@pytest.mark.parametrize(
    ("cloud", "come"),
    [
        (RENTED, [WIDE, NARROW]),  # rent may be saved
        (EXTENDED, [WIDE, NARROW]),  # there is always more
        (TWO_POOLS, [WIDE, replace(NARROW, pools=(OFFER.pool,))]),
        (OWNED, [WIDE, replace(NARROW, pools=("elsewhere",))]),
        (OWNED, [WIDE, replace(NARROW, max_gpus=2)]),  # it has a choice
        (OWNED, [replace(WIDE, gpus=8, max_gpus=8), NARROW]),  # there is no room
        (OWNED, [replace(WIDE, purse_left_usd=5.0), NARROW]),
        (OWNED, [replace(WIDE, min_on_demand=1), NARROW]),
        (OWNED, [replace(WIDE, speed=PHASED), NARROW]),
        (OWNED, [replace(WIDE, speed=Doubted()), NARROW]),
        (OWNED, [WIDE, replace(NARROW, gpus=9, min_gpus=9, max_gpus=9)]),  # it never fits
    ],
)
def test_where_somebody_might_want_something_else_the_table_is_made(cloud, come):
    assert look(cloud, *come) is None


def test_who_was_refused_something_may_ask_again():
    assert look(OWNED, WIDE, NARROW, refusals=object()) is None


@pytest.mark.parametrize(("left_s", "told"), [(1000.0, {}), (1020.0, {}), (980.0, {"one"})])
def test_owners_hear_of_deadlines_that_are_past_hope_and_not_of_those_that_are_near(left_s, told):
    wide = replace(WIDE, work=3000.0, deadline_s=left_s)
    assert set(look(OWNED, wide, NARROW).told) == set(told)


def test_who_has_more_than_it_would_be_given_keeps_it_also_while_it_is_alone():
    """It was in a hurry when it got all eight, and is content with them now: eight do 1.36 times the work of one."""
    driver = Driver(OWNED.offers, limits=OWNED.limits)
    hurried = a_job("slow", work=1e5, gpus=1, max_gpus=8, speed=Amdahl(parallel=0.3), restart_s=60.0, hurry=True)
    driver.submit(hurried)
    driver.settle(Price())
    assert driver.kernel.active["slow"].gpus == 8
    driver.tell(JobChanged(100.0, replace(hurried, hurry=False)))
    plan = BothWays(Price()).decide(driver.kernel.snapshot())
    assert not plan.shapes
    assert plan.ask_again_s is None


@pytest.mark.long
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 40), st.sampled_from([1, 3, 12]), st.sampled_from([0.02, 0.3])),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_jobs_whose_last_phase_scales_badly_are_shared_out_alike(wanted):
    come = [
        a_job(
            f"j{at}", submit_s=900.0 * came, work=600.0 * size, gpus=1, max_gpus=most, restart_s=30.0,
            speed=Phased(ends=(300.0 * size, 1e9), rates=PerfectThen(scales)),
        )
        for at, (came, size, most, scales) in enumerate(wanted)
    ]  # fmt: skip
    simulate(come, BothWays(Price()), OWNED)


@dataclass(frozen=True)
class PerfectThen:
    """Rates of two phases: the first by the number of GPUs, the other a little more for each."""

    scales: float

    def __call__(self, gpu, spread):
        return (float(sum(spread)), 1.0 + self.scales * sum(spread))
