"""A node that is cut off: its jobs go on without it, it is paid for as before, and it is taken in again."""

from __future__ import annotations

import json

import pytest

from sublet.domain.actions import MakePlan, ReleaseNode, RentNode, ResizeJob
from sublet.domain.events import NodeLost, NodeNoticed, NodeReady, NodeSilent
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.kernel.cluster import NodePhase
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def p(gpus):
    return Shape("p", gpus)


def trains_on(nodes, *, size=1, **facts):
    """A job on all GPUs of these nodes, which are there at once: a loss would be waited out."""
    driver = Driver([an_offer("o", gpus=size, pool="p", boot_s=0.0)])
    driver.submit(a_job("a", **{"gpus": nodes * size, "min_gpus": 1, "max_gpus": nodes * size, **facts}))
    for order in driver.plan(Plan(hold={"o": nodes}, shapes={"a": p(nodes * size)})):
        driver.answer(order)
    (start,) = driver.open
    driver.answer(start)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    return driver


def test_its_job_goes_on_at_once_with_the_others_and_no_node_is_rented_or_given_back():
    driver = trains_on(4)
    orders = driver.tell(NodeSilent(100.0, "n3", "not heard"))
    assert orders == [ResizeJob("a", 2, p(3), (("n1", 1), ("n2", 1), ("n4", 1))), MakePlan()]
    node = driver.kernel.cluster.nodes["n3"]
    assert (node.phase, node.jobs, node.free) == (NodePhase.REQUESTED, {}, 1)
    assert driver.plan(Plan(hold={"o": 4}, shapes={"a": p(4)})) == []
    burn = driver.kernel.ledger.burn()
    assert burn.micro_usd_per_h == 4 * driver.kernel.ledger.price("o").micro_usd_per_h
    driver.answer(orders[0])
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert driver.tell(NodeReady(200.0, "n3")) == [
        ResizeJob("a", 3, p(4), (("n1", 1), ("n2", 1), ("n4", 1), ("n3", 1)))
    ]


def test_where_the_rest_is_too_small_it_stands_until_the_node_is_back():
    driver = trains_on(2, min_gpus=2)
    assert driver.tell(NodeSilent(100.0, "n1")) == [MakePlan()]
    assert driver.kernel.jobs["a"].phase is Phase.BROKEN
    driver.plan(Plan(hold={"o": 2}, shapes={"a": p(2)}))
    assert driver.tell(NodeReady(150.0, "n1")) == [ResizeJob("a", 2, p(2), (("n2", 1), ("n1", 1)))]


def test_one_with_nobody_elsewhere_holds_nothing_and_waits():
    driver = trains_on(1)
    driver.tell(NodeSilent(100.0, "n1"))
    assert driver.kernel.jobs["a"].gpus == 0


def test_jobs_that_share_a_node_leave_it_together():
    driver = Driver([an_offer("o", gpus=2, pool="p", boot_s=0.0)])
    driver.submit(*(a_job(name, gpus=2, min_gpus=1, max_gpus=2) for name in "ab"))
    driver.plan(Plan(hold={"o": 2}, shapes={"a": p(2), "b": p(2)}))
    for _ in range(2):
        for order in [order for order in driver.open if not isinstance(order, MakePlan)]:
            driver.answer(order)
    gone = next(iter(driver.kernel.cluster.nodes))
    tenants = set(driver.kernel.cluster.nodes[gone].jobs)
    driver.tell(NodeSilent(100.0, gone))
    assert not any(gone in dict(driver.kernel.tenancy.placement.get(job_id, ())) for job_id in tenants)


def test_of_nodes_that_are_not_wanted_the_silent_one_goes_first():
    driver = trains_on(3)
    (move, _) = driver.tell(NodeSilent(100.0, "n1"))
    driver.answer(move)
    assert driver.plan(Plan(hold={"o": 2}, shapes={"a": p(2)})) == [ReleaseNode("n1")]


def test_it_may_be_lost_after_all_and_is_replaced_then():
    driver = trains_on(3)
    (move, _) = driver.tell(NodeSilent(100.0, "n1"))
    driver.answer(move)
    driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)}))
    assert RentNode("n4", "o") in driver.tell(NodeLost(900.0, "n1"))
    assert "n1" not in driver.kernel.cluster.nodes


@pytest.mark.parametrize("event", [NodeNoticed(50.0, "n1", 170.0), NodeSilent(50.0, "n1")], ids=["noticed", "silent"])
def test_one_that_goes_or_is_left_already_is_not_left_again(event):
    driver = trains_on(2)
    driver.tell(event)
    before = driver.kernel.cluster.nodes["n1"].phase
    assert driver.tell(NodeSilent(60.0, "n1")) == []
    assert driver.kernel.cluster.nodes["n1"].phase is before


def test_a_snapshot_and_a_log_bring_it_back_as_it_was():
    driver = trains_on(3)
    driver.tell(NodeSilent(100.0, "n2"))
    again = kernel_from_snapshot(json.loads(json.dumps(driver.kernel.facts())))
    check(again)
    assert again.cluster.nodes["n2"].phase is NodePhase.REQUESTED
    assert replay(driver.journal).tenancy.placement == driver.kernel.tenancy.placement
