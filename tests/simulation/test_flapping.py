"""A node that comes and goes: what growing onto it again and again costs, and what waiting saves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from sublet import plugins
from sublet.domain.actions import ResizeJob, StartJob
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, JobResized, NodeLost
from sublet.domain.offer import Market
from sublet.kernel import growing
from sublet.kernel.growing import FLAPS, OVERHEAD
from sublet.perf.speedup import Amdahl
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet.testing.values import Changes, a_job, an_offer

H = 3600.0
RESTART_S = 30.0
WINDOW_S = 2.0 * RESTART_S / OVERHEAD  # notices are long enough for a checkpoint: nothing is redone
POLICIES = ("price", "max-speedup", "sia", "elastic-batch")
NEVER = 10**9  # flaps until they are noticed


def flapping(every_s, hours, *, steady=2, until_s=math.inf):
    """So many nodes for good, and one more that is there every other `every_s` seconds until it stays."""
    changes, at_s, there = [], 0.0, True
    while at_s < min(hours * H, until_s):
        changes.append(AvailabilityChanged(at_s, "spot", steady + there))
        at_s, there = at_s + every_s, not there
    return Changes([*changes, AvailabilityChanged(at_s, "spot", steady + 1)])


def run(policy, market, *, hours=8.0, restart_s=RESTART_S, offers=(), notice_s=20.0, saved_every_s=300.0):
    """One job that would like sixteen GPUs, in nodes of four; the run and all that was heard and ordered."""
    spot = an_offer(gpus=4, usd_per_h="4", hazard_per_h=0.1, notice_s=notice_s)
    cloud = Cloud(
        offers=[spot, *offers],
        limits={"spot": Limit(max_nodes=4), **{offer.id: Limit(max_nodes=4) for offer in offers}},
        physics=Physics(notice_s=notice_s),
        market=market,
    )
    job = a_job(
        work=hours * H * 8.0,
        speed=Amdahl(parallel=0.99),
        gpus=4,
        max_gpus=16,
        restart_s=restart_s,
        checkpoint_every_s=saved_every_s,
        checkpoint_write_s=5.0,
    )
    log = []
    made = plugins.load("sublet.policies", policy)()
    found = simulate(
        [job], made, cloud, checked=hours < 8.0, watch=lambda event, orders: log.append((event, list(orders)))
    )
    assert found.unfinished == ()
    return found.metrics, log


def widths(log):
    """(when, GPUs) of every start and resize."""
    moves = [(e.at_s, o.shape.gpus) for e, orders in log for o in orders if isinstance(o, StartJob | ResizeJob)]
    return moves


def growths(log):
    moves = widths(log)
    return [at_s for (_, before), (at_s, after) in pairwise(moves) if after > before]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_that_comes_and_goes_every_minute_costs_little(policy, monkeypatch, record_property):
    found, log = run(policy, flapping(60.0, 8.0))
    monkeypatch.setattr(growing, "FLAPS", NEVER)  # as it was: every coming is followed
    before, _ = run(policy, flapping(60.0, 8.0))

    for name, metrics in (("before", before), ("after", found)):
        share = metrics.paused_gpu_hours / metrics.gpu_hours
        figures = f"{metrics.rescales} resizes, {share:.1%} paused, USD {metrics.usd:.2f}, {metrics.mean_s / H:.2f} h"
        record_property(f"{policy} {name}", figures)
    assert found.paused_gpu_hours <= 0.05 * found.gpu_hours
    assert found.usd < before.usd
    assert found.mean_s < before.mean_s
    grown = growths(log)
    assert all(b - a >= WINDOW_S - 60.0 for a, b in pairwise(grown[FLAPS:]))
    # At most one resize per window, of which each growing and the shrinking after it has one, once it was noticed.
    assert len(widths(log)) <= 2 * (FLAPS + 1) + found.makespan_s / (WINDOW_S / 2.0)


@pytest.mark.parametrize("policy", ["price", "max-speedup"])
def test_a_loss_is_followed_at_once(policy):
    _, log = run(policy, flapping(60.0, 2.0), hours=2.0, notice_s=0.0)
    lost = [event.at_s for event, _ in log if isinstance(event, NodeLost)]
    resized = {event.at_s for event, _ in log if isinstance(event, JobResized)}
    assert len(lost) > FLAPS
    assert resized >= set(lost)


@pytest.mark.parametrize("policy", ["price", "max-speedup", "sia"])
def test_who_waited_grows_within_a_window_of_the_calm(policy):
    calm_s = 0.5 * H
    _, log = run(policy, flapping(60.0, 4.0, until_s=calm_s), hours=4.0)
    *_, (last_s, gpus) = widths(log)
    assert gpus == 12
    assert last_s <= calm_s + WINDOW_S


@pytest.mark.parametrize("policy", ["price", "max-speedup"])
def test_visits_that_bring_far_more_than_they_cost_are_all_taken(policy, monkeypatch):
    """A second node for 100 s brings 50 s and costs 11; but for that, three of them in 500 s would be too many."""
    facts = {"hours": 1.0, "restart_s": 5.0, "notice_s": 0.0, "saved_every_s": 2.0}
    _, log = run(policy, flapping(100.0, 1.0, steady=1), **facts)
    monkeypatch.setattr(growing, "FLAPS", NEVER)
    _, before = run(policy, flapping(100.0, 1.0, steady=1), **facts)
    assert len(growths(log)) == len(growths(before)) > 2 * FLAPS


def test_a_job_that_left_a_flapping_pool_does_not_come_back_at_every_visit(monkeypatch):
    steady = an_offer("d", gpus=4, usd_per_h="6", market=Market.ON_DEMAND)
    found, _ = run("price", flapping(60.0, 8.0, steady=0), offers=(steady,))
    monkeypatch.setattr(growing, "FLAPS", NEVER)
    before, _ = run("price", flapping(60.0, 8.0, steady=0), offers=(steady,))
    assert found.rescales <= before.rescales
    assert found.paused_gpu_hours <= 0.05 * found.gpu_hours


@pytest.mark.parametrize("policy", ["price", "max-speedup"])
@pytest.mark.parametrize("stay_s", [600.0, 900.0])
def test_a_replacement_that_the_same_reclaim_takes_does_not_make_a_long_stay_short(policy, stay_s, monkeypatch):
    """At the notice another is rented, which goes when the notice ends: 20 s of it say nothing about the next one."""
    away_s = 60.0
    comings = [at * (stay_s + away_s) for at in range(30)]
    changes = [AvailabilityChanged(at_s + gone, "spot", 2 - (gone > 0)) for at_s in comings for gone in (0.0, stay_s)]
    _, log = run(policy, Changes(changes), hours=2.0)
    monkeypatch.setattr(growing, "FLAPS", NEVER)
    _, before = run(policy, Changes(changes), hours=2.0)
    assert growths(log) == growths(before)
    assert len(growths(log)) > 2 * FLAPS
