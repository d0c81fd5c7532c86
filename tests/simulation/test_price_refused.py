"""A cloud that has no spot and does not say so: it is asked again, but nothing is given up for the asking."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from sublet.domain.actions import MakePlan
from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.events import AvailabilityChanged, JobChanged, RentRefused
from sublet.domain.money import Money
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.timers import RetryOffer
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud
from sublet.sim.world import Physics
from sublet.testing.driver import Driver
from sublet.testing.values import Changes, a_job, an_offer
from tests.rigs.silent_cloud import simulate_silent

H = 3600.0
BOOT_S = 240.0
SPOT = an_offer("s", gpus=1, usd_per_h="0.29", boot_s=BOOT_S, notice_s=120.0, hazard_per_h=0.1)
STEADY = an_offer("d", gpus=1, usd_per_h="1.58", market=Market.ON_DEMAND, boot_s=BOOT_S, minimum_billing_s=60.0)


def run(
    monkeypatch, workload, refuses, *, offers=(SPOT, STEADY), budget=UNLIMITED, supply=(), answer_s=0.0, notice_s=120.0
):
    cloud = Cloud(
        offers=list(offers),
        limits={offer.id: Limit(max_nodes=4) for offer in offers},
        budget=budget,
        physics=Physics(provision_s=BOOT_S, notice_s=notice_s),
        market=Changes(AvailabilityChanged(at_s, "s", nodes) for at_s, nodes in supply),
    )
    found, seen = simulate_silent(monkeypatch, workload, Price(), cloud, refuses=refuses, answer_s=answer_s)
    assert found.unfinished == ()
    return found, seen


def spot_until(back_s):
    return lambda now_s, offer_id: offer_id.startswith("s") and now_s < back_s


@pytest.mark.parametrize("budget", [UNLIMITED, Budget(purse=Money.from_usd("20"))])
@pytest.mark.parametrize("answer_s", [0.0, 1.0])
def test_spot_that_is_always_refused_costs_one_launch_on_demand(monkeypatch, budget, answer_s):
    found, seen = run(
        monkeypatch, [a_job(work=H, restart_s=30.0)], spot_until(math.inf), budget=budget, answer_s=answer_s
    )
    assert seen.had("d") == 1
    assert seen.had("s") == 0
    assert seen.starts == [(BOOT_S + answer_s, "T4x1:on-demand")]
    assert found.metrics.max_s == pytest.approx(BOOT_S + answer_s + 30.0 + H)


def test_three_kinds_of_spot_that_all_refuse_are_no_reason_for_more(monkeypatch):
    """Their answers come at different times, and so do the times to ask them again."""
    others = [an_offer(f"s{at}", gpus=1, usd_per_h=f"0.{30 + at}", boot_s=BOOT_S, pool=f"p{at}") for at in (1, 2)]
    _, seen = run(
        monkeypatch,
        [a_job(work=H, restart_s=30.0)],
        spot_until(math.inf),
        offers=(SPOT, *others, STEADY),
        answer_s=2.0,
    )
    assert seen.had() == seen.had("d") == 1
    assert max(Counter(seen.asked).values()) == 1  # of one offer at one instant
    assert len(seen.asked) < 30  # in an hour


@pytest.mark.parametrize("notice_s", [0.0, 120.0])
def test_a_job_that_lost_its_spot_node_keeps_the_node_that_boots_for_it(monkeypatch, notice_s):
    """It stands still meanwhile: the same as if it had not begun."""
    found, seen = run(
        monkeypatch,
        [a_job(work=2 * H, restart_s=30.0, checkpoint_every_s=10.0)],
        lambda now_s, offer_id: offer_id == "s" and now_s > 0.0,
        supply=[(0.0, 1), (1000.0, 0)],
        notice_s=notice_s,
    )
    assert (seen.had("s"), seen.had("d")) == (1, 1)
    assert found.metrics.max_s < 2 * H + 2 * (BOOT_S + 60.0)


@pytest.mark.parametrize("back_s", [100.0, 1800.0])
def test_spot_that_comes_back_without_a_word_is_found_and_returned_to(monkeypatch, back_s):
    found, seen = run(monkeypatch, [a_job(work=3 * H, restart_s=30.0)], spot_until(back_s))
    assert (seen.had("d"), seen.had("s")) == (1, 1)
    assert [pool for _, pool in seen.starts] == ["T4x1:on-demand", "T4x1:spot"]
    asked_s = next(at_s for at_s, offer_id in seen.asked if offer_id == "s" and at_s >= back_s)
    assert asked_s - back_s <= max(600.0, 960.0)  # the next look at jobs, or the longest time between two requests
    assert seen.starts[1][0] == pytest.approx(asked_s + BOOT_S)
    assert found.metrics.usd < 1.58 * (asked_s + BOOT_S + 60.0) / H + 0.29 * 3


def test_with_money_for_one_node_a_job_that_trains_is_not_stopped_for_one_that_is_refused(monkeypatch):
    """To ask for spot the cap on dollars per hour would have it give its node back first."""
    cap = Budget(burn=Usd.from_usd_per_h("1.60"))
    found, seen = run(monkeypatch, [a_job(work=2 * H, restart_s=30.0)], spot_until(math.inf), budget=cap)
    assert seen.had("d") == 1
    assert len(seen.starts) == 1
    assert found.metrics.max_s == pytest.approx(BOOT_S + 30.0 + 2 * H)


def test_half_of_what_a_job_needs_is_no_reason_to_stay(monkeypatch):
    """One of its two nodes on demand is on its way, the other was refused: spot, refused before, is all there is."""
    answers = iter([False])
    _, seen = run(
        monkeypatch,
        [a_job(work=H, gpus=2, min_gpus=2, max_gpus=2, restart_s=30.0)],
        lambda now_s, offer_id: now_s < 100.0 if offer_id == "s" else next(answers, True),
        answer_s=90.0,
    )
    assert seen.starts == [(90.0 + 90.0 + BOOT_S, "T4x1:spot")]  # asked for at the second refusal
    assert (seen.had("s"), seen.had("d")) == (2, 1)


def test_who_may_not_stay_goes_whatever_was_refused_elsewhere():
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=4), "d": Limit(max_nodes=4)})
    driver.submit(a_job(work=H))
    driver.answer(MakePlan(), Price())
    driver.tell(RentRefused(0.0, "n1"))
    driver.answer(MakePlan(), Price())
    driver.ring([RetryOffer("s")])
    driver.answer(MakePlan(), Price())
    assert driver.kernel.jobs["a"].shape.pool == "T4x1:on-demand"  # its node boots
    driver.tell(JobChanged(70.0, a_job(work=H, pools=("T4x1:spot",))))
    driver.answer(MakePlan(), Price())
    assert driver.kernel.jobs["a"].shape.pool == "T4x1:spot"


def test_who_has_nothing_and_is_promised_nothing_asks_for_anything(monkeypatch):
    """Spot alone, refused for a while: asked ever less often, and had in the end."""
    _, seen = run(monkeypatch, [a_job(work=H)], spot_until(1000.0), offers=(SPOT,))
    assert [at_s for at_s, _ in seen.asked] == [0.0, 60.0, 180.0, 420.0, 900.0, 1860.0]
