"""Who waits with growing while nodes come and go, who does not, and what survives a snapshot."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sublet.domain.actions import ResizeJob, SetTimer, StartJob
from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import BudgetChanged, NodeLost, NodeNoticed, TimerFired
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


def flapping(job):
    """A job on one node of four GPUs, and promised another node that has come and gone often enough."""
    driver = Driver([an_offer("o", gpus=4, pool="p", notice_s=5.0, boot_s=60.0)], limits={"o": Limit(max_nodes=3)})
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
