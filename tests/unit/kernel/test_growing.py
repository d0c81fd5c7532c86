"""Who waits with growing while nodes come and go, who does not, and what survives a snapshot."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from sublet.domain.actions import ResizeJob, SetTimer, StartJob
from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import BudgetChanged, JobFinished, NodeLost, NodeNoticed, OffersChanged, TimerFired
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import GrowAgain
from sublet.kernel.growing import FLAPS, OVERHEAD
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

RESTART_S = 10.0
WINDOW_S = 2 * RESTART_S / OVERHEAD
JOB = a_job(work=1e6, gpus=4, max_gpus=8, restart_s=RESTART_S, checkpoint_write_s=1.0)


def p(gpus):
    return Shape("p", gpus)


def answer_all(driver, kinds=object):
    for order in [o for o in driver.open if isinstance(o, kinds)]:
        if order in driver.open and type(order).__name__ != "MakePlan":
            driver.answer(order)


@pytest.fixture
def driver():
    return flapping(JOB)


def flapping(job, *others, limits=None):
    """A job on one node of four GPUs, and promised another node that has come and gone often enough."""
    offer = an_offer("o", gpus=4, pool="p", notice_s=5.0, boot_s=60.0)
    driver = Driver([offer, *others], limits={"o": Limit(max_nodes=3), **(limits or {})})
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.plan(Plan())
    driver.submit(job)
    driver.plan(Plan(shapes={"a": p(8)}, hold={"o": 2}))
    answer_all(driver)
    answer_all(driver)
    for _ in range(FLAPS):
        driver.now_s += 30.0
        flap(driver)
        driver.now_s += 30.0
        driver.plan(Plan())
        answer_all(driver)  # the next node comes
        answer_all(driver)
    return driver


def flap(driver):
    """The cloud takes the newest node; the survivors train on."""
    newest = max(driver.kernel.cluster.nodes.values(), key=lambda node: node.number)
    driver.tell(NodeLost(driver.now_s, newest.id))
    answer_all(driver, ResizeJob)


def gpus(driver, job_id="a"):
    return driver.kernel.jobs[job_id].gpus


def test_it_does_not_grow_onto_the_node_that_comes_next(driver):
    assert any(n.free == 4 for n in driver.kernel.cluster.nodes.values())  # it has come
    assert gpus(driver) == 4
    assert "a" in driver.kernel.tenancy.growing.put_aside


def test_a_policy_sees_it_no_wider_than_it_is(driver):
    seen = driver.kernel.snapshot().active["a"].job
    assert (seen.min_gpus, seen.gpus, seen.max_gpus) == (1, 4, 4)
    assert driver.kernel.jobs["a"].job == JOB


def test_it_grows_when_the_window_is_over(driver):
    due_s = driver.timers[GrowAgain()]
    assert driver.now_s < due_s <= driver.now_s + WINDOW_S
    driver.ring([GrowAgain()])
    assert [o.shape.gpus for o in driver.open if isinstance(o, ResizeJob)] == [8]
    assert driver.kernel.snapshot().active["a"].job == JOB


def test_a_timer_that_rings_early_is_set_again(driver):
    due_s = driver.timers[GrowAgain()]
    orders = driver.tell(TimerFired(driver.now_s + 1.0, GrowAgain()))
    assert SetTimer(GrowAgain(), due_s) in orders
    assert gpus(driver) == 4


def test_those_behind_it_in_line_and_new_ones_are_served(driver):
    driver.submit(a_job("b", gpus=4, restart_s=RESTART_S))
    driver.plan(Plan(shapes={"a": p(4), "b": p(4)}))
    assert [o.job_id for o in driver.open if isinstance(o, StartJob)] == ["b"]


def test_who_would_hold_less_than_its_least_takes_what_comes(driver):
    first = min(driver.kernel.cluster.nodes.values(), key=lambda node: node.number)
    driver.tell(NodeLost(driver.now_s, first.id))  # nothing is left to it
    assert [o.job_id for o in driver.open if isinstance(o, ResizeJob)] or gpus(driver) == 0
    driver.plan(Plan(shapes={"a": p(4)}))
    assert any(isinstance(o, StartJob | ResizeJob) and o.job_id == "a" for o in driver.open)


def test_who_is_told_to_leave_and_cannot_do_with_less_goes_to_the_new_node():
    driver = flapping(replace(JOB, gpus=8, min_gpus=8))
    driver.plan(Plan(hold={"o": 3}))
    answer_all(driver)
    first = min(driver.kernel.cluster.nodes.values(), key=lambda node: node.number)
    driver.tell(NodeNoticed(driver.now_s, first.id, driver.now_s + 5.0))
    driver.plan(Plan())
    (order,) = (o for o in driver.open if isinstance(o, ResizeJob))
    assert order.shape.gpus == 8
    assert first.id not in dict(order.placement)


def test_a_kernel_that_goes_on_from_a_snapshot_waits_as_long(driver):
    facts = json.loads(json.dumps(driver.kernel.facts()))
    twin = kernel_from_snapshot(facts, speed_of=lambda job: JOB.speed)
    assert twin.snapshot().active["a"].job.max_gpus == 4
    ring = TimerFired(driver.timers[GrowAgain()], GrowAgain())
    assert twin.handle(ring) == driver.kernel.handle(ring)


def test_a_snapshot_of_before_has_seen_nothing_come_or_go(driver):
    facts = json.loads(json.dumps(driver.kernel.facts()))
    del facts["tenancy"]["growing"]
    facts["tenancy"]["lines"]["p"] = ["a"]
    twin = kernel_from_snapshot(facts, speed_of=lambda job: JOB.speed)
    assert twin.snapshot().active["a"].job.max_gpus == 8


# ---------------------------------------------------------------------- a steady offer beside one that flaps


def beside(steady_pool, most=2):
    """The same, with another offer, of which nothing ever went, in this pool or in another one."""
    steady = an_offer("d", gpus=4, pool=steady_pool, usd_per_h="9", market=Market.ON_DEMAND)
    return flapping(JOB, steady, limits={"d": Limit(max_nodes=most)})


def test_what_is_steady_beside_it_is_grown_onto_at_once():
    driver = beside("p")
    assert gpus(driver) == 4
    driver.plan(Plan(hold={"o": 2, "d": 1}, shapes={"a": p(8)}))
    answer_all(driver)  # it has come: beside it is the one that may go
    (order,) = (o for o in driver.open if isinstance(o, ResizeJob))
    assert [driver.kernel.cluster.nodes[node_id].offer.id for node_id, _ in order.placement] == ["o", "d"]


def test_a_policy_sees_a_job_as_wide_as_what_is_steady_makes_it_and_no_more_of_what_flaps():
    driver = beside("p", most=1)
    seen = driver.kernel.snapshot()
    assert seen.active["a"].job.max_gpus == 8  # four that it has, and four to be had
    assert (seen.offers["o"].available, seen.offers["o"].held) == (2, 2)
    driver.submit(a_job("b", gpus=4))
    assert driver.kernel.snapshot().offers["o"].available is None  # who has nothing takes what there is


def test_nodes_of_another_pool_are_no_room_to_grow_into():
    driver = beside("q")
    driver.plan(Plan(hold={"o": 2, "d": 1}))
    answer_all(driver)
    assert any(n.offer.id == "d" and n.free == 4 for n in driver.kernel.cluster.nodes.values())
    seen = driver.kernel.snapshot()
    assert seen.active["a"].job.max_gpus == 4
    assert seen.offers["o"].available is None


def test_nobody_moves_into_a_pool_that_flaps_and_anybody_into_one_that_has_more_than_that():
    for steady_pool, open_to_it in (("q", ("q",)), ("p", ())):
        driver = beside(steady_pool)
        other = an_offer("e", gpus=4, pool="r", usd_per_h="9", market=Market.ON_DEMAND)
        offers = (*driver.kernel.supply.offers.values(), other)
        driver.tell(OffersChanged(driver.now_s, offers, {"o": Limit(max_nodes=3)}))
        driver.submit(a_job("b", work=1e6, gpus=4, restart_s=RESTART_S))
        driver.plan(Plan(hold={"o": 2, "e": 1}, shapes={"a": p(4), "b": Shape("r", 4)}))
        answer_all(driver)
        answer_all(driver)
        pools = driver.kernel.snapshot().active["b"].job.pools
        assert pools == (open_to_it and (*open_to_it, "r")), steady_pool


QUICK = replace(JOB, restart_s=5.0)  # it pays to grow where a stay brings 20 s


def test_who_would_grow_by_much_does_not_wait(driver):
    growing = driver.kernel.tenancy.growing
    assert growing.until_s(QUICK, "o", held=4, more=4) > driver.now_s  # 30 s x 4 / 8
    assert growing.until_s(QUICK, "o", held=4, more=16) == -math.inf  # 30 s x 16 / 20
    assert growing.until_s(JOB, "o", held=4, more=16) > driver.now_s  # its pauses are twice as long


def test_one_of_many_nodes_stays_longer_than_the_next_loss(driver):
    growing, held = driver.kernel.tenancy.growing, driver.kernel.cluster.held
    assert held["o"] == 2
    assert growing.until_s(QUICK, "o", held=4, more=4) > driver.now_s
    held["o"] = 4  # half of the losses are those of others
    assert growing.until_s(QUICK, "o", held=4, more=4) == -math.inf


def test_one_that_ends_while_it_is_put_aside_waits_for_nothing(driver):
    assert "a" in driver.kernel.tenancy.growing.put_aside
    driver.tell(JobFinished(driver.now_s, "a"))
    assert driver.kernel.tenancy.growing.put_aside == {}
