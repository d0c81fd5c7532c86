"""What the kernel notes of reclaims, and what a policy sees of it."""

from __future__ import annotations

import math

import pytest

from sublet.domain.actions import MakePlan
from sublet.domain.events import JobSubmitted, NodeLost, NodeNoticed, NodeReady, NodeThreatened, PlanMade
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.kernel.cluster import NodePhase
from sublet.kernel.kernel import Kernel
from sublet.kernel.market_memory import FORGOTTEN_S, Exposure
from sublet.perf.preemption.reclaims import believe_reclaims
from sublet.testing.values import a_job, an_offer


def test_losses_and_node_hours_are_counted_and_fade():
    seen = Exposure([an_offer("o", hazard_per_h=0.5)])
    seen.hold({"o": 3}, 0.0)
    lost, held_h = seen.seen("o", 360.0)
    assert lost == 0.0
    assert held_h == pytest.approx(3 * 0.1, rel=0.01)
    seen.lose("o", 360.0)
    seen.hold({"o": 0}, 360.0)
    then = seen.seen("o", 360.0)
    assert then[0] == 1.0
    later = seen.seen("o", 360.0 + FORGOTTEN_S)
    assert later == pytest.approx([each / math.e for each in then])


def test_in_the_long_run_a_steady_holding_counts_as_a_day_of_it():
    seen = Exposure([an_offer("o", hazard_per_h=0.5)])
    seen.hold({"o": 2}, 0.0)
    assert seen.seen("o", 100 * FORGOTTEN_S)[1] == pytest.approx(2 * 24.0)


def test_reading_changes_nothing():
    one, other = (Exposure([an_offer("o", hazard_per_h=0.5)]) for _ in range(2))
    for each in (one, other):
        each.hold({"o": 1}, 10.0)
    for at_s in (20.0, 30.0, 40.0):
        one.seen("o", at_s)
    assert one.seen("o", 50.0) == other.seen("o", 50.0)


@pytest.mark.parametrize("facts", [{"hazard_per_h": 0.0}, {"hazard_per_h": 0.5, "market": Market.ON_DEMAND}])
def test_offers_that_are_not_said_to_be_reclaimed_are_not_watched(facts):
    seen = Exposure([an_offer("o", **facts)])
    seen.hold({"o": 3}, 0.0)
    seen.lose("o", 5.0)
    assert seen.seen("o", 10.0) == (0.0, 0.0)


def held(kernel, nodes):
    kernel.handle(JobSubmitted(0.0, a_job(gpus=4)))
    kernel.handle(PlanMade(0.0, Plan(hold={"o": nodes}), kernel.seen))
    for at in range(1, nodes + 1):
        kernel.handle(NodeReady(0.0, f"n{at}"))


def test_a_node_noticed_and_then_lost_is_one_loss_and_one_without_notice_too():
    kernel = Kernel([an_offer("o", hazard_per_h=0.5)])
    held(kernel, 3)
    kernel.handle(NodeNoticed(60.0, "n1", 180.0))
    kernel.handle(NodeLost(90.0, "n2"))
    if "n1" in kernel.cluster.nodes:
        kernel.handle(NodeLost(180.0, "n1"))
    state = kernel.snapshot().offers["o"]
    assert state.lost == pytest.approx(2.0, rel=0.01)
    assert state.held_h > 0


def test_a_node_that_may_be_taken_stays_and_its_offer_counts_as_taken_from_more_often():
    kernel = Kernel([an_offer("o", hazard_per_h=0.5), an_offer("p", hazard_per_h=0.5)])
    held(kernel, 2)
    before = kernel.snapshot().offers["o"]
    orders = kernel.handle(NodeThreatened(60.0, "n1"))
    assert orders == [MakePlan()]
    state = kernel.snapshot().offers["o"]
    assert (before.lost, state.lost, state.held) == (0.0, 0.5, 2)
    kernel.handle(NodeThreatened(60.0, "n2"))
    state = kernel.snapshot().offers["o"]
    assert believe_reclaims([state]).per_h > believe_reclaims([before]).per_h, (
        "two of them are a step of what is believed"
    )
    assert kernel.cluster.nodes["n1"].phase is NodePhase.READY
    assert kernel.snapshot().offers["p"].lost == 0.0
    kernel.handle(NodeNoticed(60.0, "n1", 180.0))
    kernel.handle(NodeThreatened(60.0, "n1"))
    assert kernel.snapshot().offers["o"].lost == 2.0, "it is taken, which is known already"


def test_the_plan_sees_nothing_of_reclaims_where_no_hazard_is_said():
    kernel = Kernel([an_offer("o")])
    held(kernel, 2)
    kernel.handle(NodeLost(60.0, "n1"))
    state = kernel.snapshot().offers["o"]
    assert (state.lost, state.held_h) == (0.0, 0.0)
