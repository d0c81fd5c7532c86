"""A job's own purse in the planner: what it cannot pay for to the end is not taken where there is something cheaper."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import RentNode, TellUser
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, JobChanged, NodeLost
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl, Linear
from sublet.planning.menu import menu_of
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.runtime.controller.memory.records import JobRecord, kernel_job
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

SPOT = an_offer("s", gpus=1, usd_per_h="0.29")
STEADY = an_offer("d", gpus=1, usd_per_h="1.58", market=Market.ON_DEMAND)


def after_spot_is_gone(job, limits=None):
    """What is rented for a job that ran on spot when spot goes."""
    driver = Driver([SPOT, STEADY], limits=limits)
    driver.submit(job)
    driver.settle(Price())
    assert [str(state.shape) for state in driver.kernel.jobs.values()] == ["1 x T4x1:spot"]
    driver.now_s = 60.0
    driver.tell(AvailabilityChanged(60.0, "s", 0))
    actions = driver.tell(NodeLost(60.0, "n1"))
    begun = len(driver.journal)
    driver.settle(Price())
    orders = [*actions, *driver.journal[begun:]]
    return driver, orders


def test_a_job_with_two_cents_left_is_not_moved_on_demand():
    """They are not enough for spot either, but take it further there; it waits, and its owner is told."""
    job = a_job(work=3600.0, purse_left_usd=0.02)
    driver, orders = after_spot_is_gone(job)
    assert driver.kernel.jobs["a"].shape is None
    assert not any(RentNode.__name__ in line and '"d"' in line for line in map(str, orders))
    assert any(TellUser.__name__ in line and "0.02 of its own budget" in line for line in map(str, orders))
    driver.tell(AvailabilityChanged(120.0, "s", 1))
    driver.settle(Price())
    assert str(driver.kernel.jobs["a"].shape) == "1 x T4x1:spot"


@pytest.mark.parametrize(("purse_usd", "goes_on"), [(0.02, False), (5.0, True)])
def test_what_its_owner_lets_a_job_spend_is_in_the_plan(purse_usd, goes_on):
    """The same, from the specification that was submitted: an hour on one worker."""
    spec = JobSpec(name="a", argv=("true",), cwd="/", work=36_000.0, samples_per_s=10.0, purse_usd=purse_usd)
    record = JobRecord(id="a", spec=spec, group=SimpleNamespace(work=36_000.0, done=0.0), submitted_s=0.0)
    driver, _ = after_spot_is_gone(kernel_job(record, 1.0))
    shape = driver.kernel.jobs["a"].shape
    assert (shape is not None and shape.pool.endswith("on-demand")) == goes_on


@pytest.mark.parametrize("left_usd", [None, 5.0])
def test_one_that_can_pay_for_it_is(left_usd):
    driver, _ = after_spot_is_gone(a_job(work=3600.0, purse_left_usd=left_usd))
    assert str(driver.kernel.jobs["a"].shape) == "1 x T4x1:on-demand"


def test_a_market_that_may_never_be_had_is_not_waited_for():
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=0)})
    driver.submit(a_job(work=3600.0, purse_left_usd=0.02))
    driver.settle(Price())
    assert str(driver.kernel.jobs["a"].shape) == "1 x T4x1:on-demand"


def test_a_job_that_runs_keeps_what_it_has_to_its_last_cent():
    """To stop it is the purse's own business."""
    driver = Driver([SPOT, STEADY])
    driver.tell(AvailabilityChanged(0.0, "s", 0))
    job = a_job(work=3600.0, purse_left_usd=5.0)
    driver.submit(job)
    driver.settle(Price())
    driver.tell(JobChanged(10.0, replace(job, purse_left_usd=0.01)))
    driver.settle(Price())
    assert driver.kernel.jobs["a"].gpus == 1


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from([0.01, 0.2, 0.5, 1.0, 3.0, 20.0]),
    st.sampled_from([600.0, 3600.0, 20_000.0]),
    st.sampled_from([Linear(), Amdahl(parallel=0.9), Amdahl(parallel=0.5)]),
    st.sampled_from([None, 0, 1, 2]),
    st.booleans(),
)
def test_the_rent_to_the_end_is_within_the_purse_or_nothing_offered_is_cheaper(left_usd, work, speed, spot, hurry):
    job = a_job(work=work, speed=speed, gpus=1, max_gpus=4, restart_s=30.0, purse_left_usd=left_usd, hurry=hurry)
    driver = Driver([SPOT, STEADY])
    if spot is not None:
        driver.tell(AvailabilityChanged(0.0, "s", spot))
    driver.submit(job)
    snapshot = driver.kernel.snapshot()
    taken = Price().decide(snapshot).shapes.get("a")
    menu = menu_of(job, Terms.from_snapshot(snapshot).sites)
    rent_C = menu.pay(0.0, Terms.from_snapshot(snapshot).rent_R) * (menu.start_C + work / menu.rate_EC[0])
    if taken is not None:
        assert rent_C[menu.column[taken]] <= max(left_usd, rent_C.min()) * (1 + 1e-9)
    else:  # it waits for spot
        assert spot == 0
        assert rent_C[menu.row_KC[0] == 1].min() > left_usd


@pytest.mark.parametrize("purse_usd", [0.02, 5.0])
def test_of_a_job_that_runs_nowhere_nobody_says_that_its_purse_is_to_blame(purse_usd):
    driver = Driver([SPOT], limits={"s": Limit(max_nodes=2)})
    driver.submit(a_job("none", work=3600.0, speed=Linear(kinds={"A100": 1.0}), purse_left_usd=purse_usd))
    driver.submit(a_job("some", work=3600.0, speed=Linear(kinds={"A100": 1.0, "T4": 1.0}), purse_left_usd=5.0))
    plan = Price().decide(driver.kernel.snapshot())
    assert list(plan.shapes) == ["some"]
    assert not any("own budget" in str(note) for note in plan.warnings.values())
