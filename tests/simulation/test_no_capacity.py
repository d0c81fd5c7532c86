"""The wanted pool has nothing for hours: another one within a decision, back later, and deadlines kept or told of."""

from __future__ import annotations

import pytest

from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.offer import Market
from sublet.policies.price.policy import Price
from sublet.sim.simulator import Cloud
from sublet.sim.world import Physics
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.silent_cloud import simulate_silent

H = 3600.0
BOOT_S = 120.0
DECISION_S = 60.0
DRY_S = 5.0 * H
SPOT = an_offer("s", gpus=1, usd_per_h="0.30", boot_s=BOOT_S, notice_s=120.0, hazard_per_h=0.1)
DEAR = an_offer("d", gpus=1, usd_per_h="1.50", market=Market.ON_DEMAND, boot_s=BOOT_S, minimum_billing_s=60.0)
LIMITS = {"s": Limit(max_nodes=4), "d": Limit(max_nodes=4)}


def run(monkeypatch, jobs, *, answer_s=2.0, dry_s=DRY_S):
    """A cloud that has no spot until then, and does not say so: each request is refused after `answer_s`."""
    cloud = Cloud(
        offers=[SPOT, DEAR], limits=LIMITS, budget=UNLIMITED, physics=Physics(provision_s=BOOT_S, notice_s=120.0)
    )
    found, seen = simulate_silent(
        monkeypatch,
        jobs,
        Price(),
        cloud,
        refuses=lambda now_s, offer_id: offer_id == "s" and now_s < dry_s,
        answer_s=answer_s,
    )
    assert found.unfinished == ()
    return found, seen


@pytest.mark.parametrize("answer_s", [0.0, 2.0, 30.0])
def test_it_falls_back_within_one_decision(monkeypatch, answer_s):
    _, seen = run(monkeypatch, [a_job(work=2 * H, restart_s=30.0)], answer_s=answer_s)
    (asked_s, first), *_ = seen.asked
    assert first == "s"
    fell_back_s = next(at_s for at_s, offer_id in seen.asked if offer_id == "d")
    assert fell_back_s - (asked_s + answer_s) <= DECISION_S
    assert seen.starts[0] == (fell_back_s + BOOT_S, DEAR.pool)


def test_it_returns_when_there_is_spot_again_and_does_not_come_and_go(monkeypatch):
    found, seen = run(monkeypatch, [a_job(work=12 * H, restart_s=30.0)])
    assert [pool for _, pool in seen.starts] == [DEAR.pool, SPOT.pool]
    assert DRY_S < seen.starts[1][0] <= DRY_S + 960.0 + BOOT_S  # the longest time between two requests, and the boot
    assert found.metrics.usd < 1.5 * (DRY_S + 960.0 + BOOT_S) / H + 0.3 * 8


def test_a_deadline_is_kept_though_the_cheap_pool_is_dry(monkeypatch):
    deadline_s = 3.0 * H
    found, _ = run(monkeypatch, [a_job(work=2.5 * H, max_gpus=2, restart_s=30.0, deadline_s=deadline_s)])
    (row,) = found.record.jobs.values()
    assert row.finish_s <= deadline_s


def test_a_deadline_that_nothing_can_meet_is_told_of_with_the_first_plan():
    driver = Driver([SPOT, DEAR], limits=LIMITS)
    driver.submit(a_job(work=100.0 * H, max_gpus=2, restart_s=30.0, deadline_s=2.0 * H))
    driver.settle(Price())
    assert any("its deadline in 2.00 h cannot be met" in line for line in driver.journal)
    assert driver.now_s == 0.0
