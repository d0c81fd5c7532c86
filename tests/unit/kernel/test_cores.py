"""A core on demand is the owner's word: no plan gives less, no loss of spot takes it, and nobody trains without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.actions import MakePlan, RefusePlan, ResizeJob, StopJob
from sublet.domain.events import JobChanged, NodeLost, PlanMade
from sublet.domain.offer import Market
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.errors import InvalidValue
from sublet.kernel.invariants import check
from sublet.kernel.values_json import from_plain, to_plain
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

SPOT = an_offer("s", gpus=1, pool="p", boot_s=600.0)
DEMAND = an_offer("d", gpus=1, pool="p", market=Market.ON_DEMAND, usd_per_h="3", boot_s=600.0)
ALONE = an_offer("alone", gpus=1, pool="q", market=Market.ON_DEMAND, usd_per_h="3")
TAKEN = an_offer("taken", gpus=1, pool="r")
JOB = a_job("a", gpus=4, min_gpus=2, max_gpus=6, min_on_demand=2)


def settled(driver):
    while waiting := [order for order in driver.open if not isinstance(order, MakePlan)]:
        driver.answer(waiting[0])
    check(driver.kernel)
    return driver


def town(shape, hold, job=JOB):
    driver = Driver([SPOT, DEMAND, ALONE, TAKEN])
    driver.submit(job)
    driver.plan(Plan(shapes={"a": shape}, hold=hold))
    return driver


def nodes_of(driver, offer_id):
    nodes = driver.kernel.cluster.nodes
    return [node_id for node_id, _ in driver.kernel.tenancy.placement["a"] if nodes[node_id].offer.id == offer_id]


@pytest.mark.parametrize(
    ("shape", "hold"), [(Shape("p", 4, steady=1), {"s": 3, "d": 1}), (Shape("r", 4), {"taken": 4})]
)
def test_a_plan_with_less_than_the_core_is_refused_by_name(shape, hold):
    with pytest.raises(InvalidValue, match=rf"shapes\[a\].steady = {shape.steady} .*at least 2"):
        town(shape, hold)


def test_where_all_is_on_demand_nothing_needs_to_be_said():
    driver = settled(town(Shape("q", 3), {"alone": 3}))
    assert len(nodes_of(driver, "alone")) == 3


def test_a_job_that_loses_all_of_its_spot_nodes_goes_on_with_its_core():
    driver = settled(town(Shape("p", 4, steady=2), {"s": 2, "d": 2}))
    for node_id in nodes_of(driver, "s"):
        driver.tell(NodeLost(10.0, node_id))
    *_, last = [order.shape for order in driver.open if isinstance(order, ResizeJob)]
    assert last == Shape("p", 2, steady=2)
    assert len(nodes_of(driver, "d")) == 2


def test_a_job_that_loses_a_node_of_its_core_does_not_train_on_without_it():
    """The machine failed: spot is enough by number, and is not what its owner asked for."""
    driver = settled(town(Shape("p", 5, steady=2), {"s": 3, "d": 2}))
    driver.tell(NodeLost(10.0, nodes_of(driver, "d")[0]))
    assert not any(isinstance(order, ResizeJob) for order in driver.open)
    assert driver.kernel.jobs["a"].phase is Phase.BROKEN
    settled(driver)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert len(nodes_of(driver, "d")) == 2


def test_an_old_plan_that_knew_of_no_core_is_left_aside_and_is_no_fault():
    driver = Driver([SPOT, DEMAND])
    plain = replace(JOB, min_on_demand=0)
    driver.submit(plain)
    seen = driver.kernel.seen
    driver.tell(JobChanged(1.0, JOB))
    orders = driver.tell(PlanMade(2.0, Plan(shapes={"a": Shape("p", 4)}, hold={"s": 4}), seen))
    assert not any(isinstance(order, RefusePlan) for order in orders)
    assert driver.kernel.jobs["a"].shape is None


def test_a_core_that_is_asked_for_later_holds_at_once():
    driver = settled(town(Shape("p", 4), {"s": 4}, replace(JOB, min_on_demand=0)))
    orders = driver.tell(JobChanged(10.0, JOB))
    assert any(isinstance(order, StopJob) for order in orders)
    check(settled(driver).kernel)
    assert driver.kernel.jobs["a"].phase is Phase.WAITING


def test_a_core_is_written_down_and_an_older_log_has_none():
    plain = to_plain(JOB)
    assert from_plain(type(JOB), plain).min_on_demand == 2
    del plain["min_on_demand"]
    assert from_plain(type(JOB), plain).min_on_demand == 0


def test_a_core_is_no_wider_than_a_job_may_shrink():
    with pytest.raises(InvalidValue, match="min_on_demand"):
        replace(JOB, min_on_demand=3)
