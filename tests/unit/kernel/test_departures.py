"""Nodes that will be taken: who trains on until it has to leave, who leaves at once; and who survives a loss."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from sublet.domain.actions import MakePlan, PrepareJob, RefusePlan, ReleaseNode, ResizeJob, SetTimer
from sublet.domain.events import AvailabilityChanged, JobChanged, NodeLost, NodeNoticed, NodeSlow, TimerFired
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Grid, Shape
from sublet.domain.timers import MoveDue
from sublet.errors import InvalidValue, InvariantBroken
from sublet.kernel.invariants import check
from sublet.kernel.journal import replay
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.perf.speedup import ConstantRate
from sublet.testing.driver import Driver
from sublet.testing.values import EvenPauses, a_job, an_offer


@dataclass(frozen=True)
class InGrids(ConstantRate):
    """As fast as there are copies; one of two parts, where no shape says."""

    copies: int = 1

    def bound_to(self, shape):
        return InGrids(shape.grid.copies if shape.grid else 1)

    def rate(self, gpu, spread, done):
        return float(self.copies)


def p(gpus, *grid):
    return Shape("p", gpus, grid=Grid(*grid) if grid else None)


def answered(driver):
    """All that is open but plans."""
    for _ in range(9):
        for order in [order for order in driver.open if not isinstance(order, MakePlan)]:
            driver.answer(order)
    return driver


def running(shape=None, *, nodes=4, boot_s=0.0, job=None, **facts):
    driver = Driver([an_offer("o", gpus=1, pool="p", boot_s=boot_s)])
    facts = {"gpus": 4, "min_gpus": 1, "max_gpus": 8, "pauses": EvenPauses(lead_s=5.0), "survives": True, **facts}
    driver.submit(job or a_job("a", **facts))
    driver.plan(Plan(hold={"o": nodes}, shapes={"a": shape or p(4)}))
    answered(driver)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    return driver


def noticed(driver, *, at_s=100.0, taken_s=160.0, node="n1"):
    return driver.tell(NodeNoticed(at_s, node, taken_s))


def moves(orders):
    return [order for order in orders if isinstance(order, ResizeJob)]


def test_a_noticed_job_trains_on_prepares_and_leaves_in_time():
    driver = running()
    assert SetTimer(MoveDue(), 160.0 - 5.0 - 2.0) in noticed(driver)
    orders = driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)}))
    assert PrepareJob("a", p(3)) in orders
    assert not moves(orders)
    assert driver.kernel.jobs["a"].gpus == 4
    (move,) = driver.tell(TimerFired(153.0, MoveDue()))
    assert isinstance(move, ResizeJob)
    assert [node for node, _ in move.placement] == ["n2", "n3", "n4"]
    assert ReleaseNode("n1") in driver.answer(move)


@pytest.mark.parametrize(
    "facts",
    [{"pauses": None}, {"survives": False}, {"pauses": EvenPauses(lead_s=58.0)}],
    ids=["restarts", "does not survive", "needs longer than the notice"],
)
def test_others_leave_at_the_notice(facts):
    driver = running(**facts)
    noticed(driver)
    assert moves(driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)})))


@pytest.mark.parametrize(
    "event", [NodeSlow(100.0, "n1"), NodeNoticed(100.0, "n1", float("inf"))], ids=["slow", "when?"]
)
def test_nobody_stays_on_a_node_of_which_nobody_knows_when_it_goes(event):
    driver = running()
    driver.tell(event)
    assert moves(driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)})))


def test_whoever_gets_more_by_leaving_leaves_as_soon_as_it_can():
    driver = running()
    noticed(driver)
    assert not moves(driver.plan(Plan(hold={"o": 5}, shapes={"a": p(5)})))  # two are on their way
    rents = [order for order in driver.open if not isinstance(order, MakePlan)]
    assert not moves(driver.answer(rents[0]))
    (move,) = moves(driver.answer(rents[1]))
    assert sum(gpus for _, gpus in move.placement) == 5


def test_whoever_has_gpus_that_others_are_promised_leaves_at_once():
    driver = running()
    noticed(driver)
    driver.submit(a_job("b", gpus=1))
    (move,) = moves(driver.plan(Plan(hold={"o": 3}, shapes={"a": p(2), "b": p(1)})))
    assert sum(gpus for _, gpus in move.placement) == 2


def test_whoever_keeps_others_from_a_node_that_came_for_it_takes_it():
    driver = running()
    noticed(driver)
    driver.submit(a_job("b", gpus=1))
    driver.plan(Plan(hold={"o": 5}, shapes={"a": p(4), "b": p(1)}))
    rents = [order for order in driver.open if not isinstance(order, MakePlan)]
    (move,) = moves(driver.answer(rents[0]))
    assert "n1" not in dict(move.placement)


def test_two_notices_are_left_with_one_move_when_the_first_is_due():
    driver = running()
    noticed(driver, taken_s=300.0)
    orders = noticed(driver, at_s=110.0, taken_s=160.0, node="n2")
    assert SetTimer(MoveDue(), 153.0) in orders
    driver.plan(Plan(hold={"o": 2}, shapes={"a": p(2)}))
    (move,) = driver.tell(TimerFired(153.0, MoveDue()))
    assert [node for node, _ in move.placement] == ["n3", "n4"]


def test_it_is_told_again_only_what_is_another_grid():
    driver = running(p(4, 2, 2), speed=InGrids())
    noticed(driver)
    assert PrepareJob("a", p(3, 1, 2)) in driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3, 1, 2)}))
    noticed(driver, at_s=110.0, taken_s=170.0, node="n2")
    assert PrepareJob("a", p(2, 1, 2)) not in driver.plan(Plan(hold={"o": 2}, shapes={"a": p(2, 1, 2)}))


def test_a_job_that_needs_longer_than_it_said_leaves_when_that_is_known():
    driver = running()
    noticed(driver)
    driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)}))
    job = replace(driver.kernel.jobs["a"].job, lead_s=60.0)
    assert moves(driver.tell(JobChanged(101.0, job)))


def test_copies_do_not_wait_for_spares():
    driver = Driver([an_offer("o", gpus=1, pool="p", boot_s=45.0)])
    driver.submit(a_job("a", gpus=3, min_gpus=2, speed=InGrids(), pauses=EvenPauses(lead_s=5.0), survives=True))
    driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3, 1, 2)}))
    first, second, third = [order for order in driver.open if not isinstance(order, MakePlan)]
    driver.answer(first)
    (start,) = driver.answer(second)
    assert start.shape == p(2, 1, 2)
    driver.answer(start)
    (move,) = moves(driver.answer(third))
    assert (move.shape, dict(move.placement).keys()) == (p(3, 1, 2), {"n1", "n2", "n3"})


# ---------------------------------------------------------------------- survivors of a loss


def test_survivors_wait_for_the_plan_of_the_instant_and_then_no_longer():
    driver = running(boot_s=300.0)
    orders = driver.tell(NodeLost(100.0, "n1"))
    assert not moves(orders)
    assert SetTimer(MoveDue(), 101.0) in orders
    (move,) = moves(driver.tell(TimerFired(101.0, MoveDue())))  # no plan has come
    assert (move.shape, driver.kernel.jobs["a"].shape) == (p(3), p(4))


@pytest.mark.parametrize(("boot_s", "carry_on"), [(19.0, False), (21.0, True)])
def test_survivors_weigh_the_boot_of_a_node_against_their_own_pauses(boot_s, carry_on):
    driver = running(boot_s=boot_s, restart_s=1000.0)
    driver.tell(NodeLost(100.0, "n1"))
    driver.plan(Plan(hold={"o": 4}))
    assert bool(moves(driver.tell(TimerFired(101.0, MoveDue())))) == carry_on


def test_a_plan_that_helps_survivors_leaves_nothing_to_do():
    driver = running(boot_s=300.0)
    driver.tell(NodeLost(100.0, "n1"))
    assert moves(driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)})))
    assert driver.tell(TimerFired(101.0, MoveDue())) == []


def test_survivors_keep_the_grid_that_they_ran_in_where_spares_step_in():
    driver = running(p(5, 2, 2), nodes=5, gpus=5, boot_s=300.0, speed=InGrids())
    driver.tell(NodeLost(100.0, "n1"))
    driver.plan(Plan(hold={"o": 6}, shapes={"a": p(6, 3, 2)}))
    (move,) = moves(driver.tell(TimerFired(101.0, MoveDue())))
    assert move.shape == p(4, 2, 2)


def test_which_other_grid_is_left_is_for_a_plan_to_weigh():
    driver = running(p(4, 2, 2), boot_s=300.0, speed=InGrids())
    driver.tell(NodeLost(100.0, "n1"))
    assert not moves(driver.tell(TimerFired(101.0, MoveDue())))


def test_survivors_do_not_pose_as_a_shape_of_the_pool_that_they_are_to_go_to():
    driver = Driver([an_offer("o", gpus=1, pool="p", boot_s=300.0), an_offer("q", gpus=1, pool="q", boot_s=300.0)])
    driver.submit(a_job("a", gpus=4, min_gpus=1, max_gpus=8))
    driver.plan(Plan(hold={"o": 4}, shapes={"a": p(4)}))
    answered(driver)
    driver.plan(Plan(hold={"o": 4, "q": 6}, shapes={"a": Shape("q", 6)}))
    assert not moves(driver.tell(NodeLost(driver.now_s, "n1")))


def test_whoever_has_no_room_to_leave_for_goes_on_with_those_who_stay():
    driver = running(boot_s=300.0)
    noticed(driver)
    driver.plan(Plan(hold={"o": 4}, shapes={"a": p(4)}))  # another is on its way, and comes too late
    (move,) = moves(driver.tell(TimerFired(153.0, MoveDue())))
    assert (move.shape, driver.kernel.jobs["a"].shape) == (p(3), p(4))


# ---------------------------------------------------------------------- what is written down


def test_who_stays_is_in_a_snapshot_and_in_the_log():
    driver = running()
    noticed(driver)
    driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)}))
    job = driver.kernel.jobs["a"].job
    text = json.dumps(driver.kernel.facts())
    twin = kernel_from_snapshot(json.loads(text), speed_of=lambda _: job.speed, pauses_of=lambda _: job.pauses)
    assert json.dumps(twin.facts()) == text
    assert twin.jobs["a"].job.pauses is job.pauses
    ring = TimerFired(153.0, MoveDue())
    assert twin.handle(ring) == driver.tell(ring) != []
    assert replay(driver.journal).now_s == 153.0  # though a log says nothing of pauses


def test_a_log_knows_what_survivors_did():
    driver = running(boot_s=300.0)
    driver.tell(NodeLost(100.0, "n1"))
    driver.tell(TimerFired(101.0, MoveDue()))
    assert replay(driver.journal).jobs["a"].gpus == 3


def test_a_plan_may_leave_a_job_what_is_about_to_be_taken_and_give_it_to_nobody_else():
    driver = running(p(4), nodes=4)
    driver.tell(AvailabilityChanged(50.0, "o", 4))
    noticed(driver)
    driver.submit(a_job("b", gpus=1, min_gpus=1))
    assert driver.kernel.snapshot().falling == {"a": 1}
    refused = driver.expect_refusal(Plan(shapes={"b": p(1)}))
    assert refused == RefusePlan("GPUs in pool p", 4, 3)
    assert driver.expect_refusal(Plan(shapes={"a": p(5)})).needed == 5  # it is not to be promised anew
    driver.plan(Plan())
    state = driver.kernel.jobs["a"]
    assert (state.phase, state.gpus, state.shape) == (Phase.RUNNING, 4, p(4))


@pytest.mark.parametrize("phase", [Phase.RESIZING, Phase.BROKEN])
def test_only_who_trains_counts_as_on_nodes_about_to_be_taken(phase):
    driver = running(p(4), nodes=4)
    noticed(driver)
    departures, jobs = driver.kernel.tenancy.departures, driver.kernel.jobs
    assert departures.falling(jobs) == {"a": 1}
    assert departures.falling({"a": replace(jobs["a"], phase=phase)}) == {}


def test_a_job_that_outstays_a_notice_breaks_a_law():
    driver = running()
    noticed(driver)
    driver.plan(Plan(hold={"o": 3}, shapes={"a": p(3)}))
    driver.kernel.tenancy.departures._wake_s = None
    with pytest.raises(InvariantBroken, match="outstays"):
        check(driver.kernel)


@pytest.mark.parametrize("lead_s", [-1.0, float("nan")])
def test_a_lead_is_no_less_than_nothing(lead_s):
    with pytest.raises(InvalidValue, match="lead_s"):
        a_job(lead_s=lead_s)


def test_it_trains_on_though_another_node_is_free_unless_somebody_else_wants_that():
    alone = running(nodes=5)
    noticed(alone)
    orders = alone.plan(Plan(hold={"o": 4}, shapes={"a": p(4)}))
    assert not moves(orders)  # the free one waits for it
    (move,) = moves(alone.tell(TimerFired(153.0, MoveDue())))
    assert "n1" not in dict(move.placement)
    beside = running(nodes=5)
    noticed(beside)
    beside.submit(a_job("b", gpus=1, min_gpus=1))
    orders = beside.plan(Plan(hold={"o": 5}, shapes={"a": p(4), "b": p(1)}))
    assert moves(orders)  # it takes the free one now: others stand in line behind it
