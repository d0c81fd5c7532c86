"""The expected time of spot shapes, by hand and beside a Monte-Carlo twin."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.domain.plan import OfferState
from sublet.errors import InvalidValue
from sublet.perf.preemption import (
    NO_RECLAIMS,
    Reclaims,
    Recovery,
    believe_reclaims,
    checkpoint_interval_s,
    expected_hits_per_h,
    hit_cost_s,
    hits_per_h,
    missing_nodes,
    speed_kept,
    spot_speed,
)
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

NODES = np.array([1, 2, 5, 16])
reclaims = st.builds(
    Reclaims,
    per_h=st.floats(0.01, 20.0),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    notice_s=st.sampled_from([0.0, 20.0, 120.0]),
    boot_s=st.sampled_from([0.0, 60.0, 300.0]),
)
spot_jobs = st.builds(
    a_job,
    restart_s=st.sampled_from([0.0, 15.0, 180.0]),
    checkpoint_every_s=st.sampled_from([60.0, 600.0]),
    checkpoint_write_s=st.sampled_from([0.0, 10.0, 60.0]),
)

# ---------------------------------------------------------------------- limits


@given(spot_jobs, st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 300.0]))
def test_without_reclaims_nothing_changes_not_by_a_rounding_error(job, share, boot_s):
    calm = Reclaims(share=share, boot_s=boot_s)
    assert spot_speed(calm, job, NODES).tolist() == spot_speed(NO_RECLAIMS, job, NODES).tolist() == [1.0] * 4


@given(reclaims, spot_jobs)
def test_speed_is_between_nothing_and_all_and_falls_with_every_node(seen, job):
    speed = spot_speed(seen, job, NODES)
    assert (speed >= 0.0).all()
    assert (speed <= 1.0).all()
    assert all(wide <= narrow * (1 + 1e-12) for narrow, wide in pairwise(speed.tolist()))


@given(reclaims, spot_jobs, st.floats(0.0, 1.0))
def test_a_notice_long_enough_and_survivors_that_go_on_never_slow_a_job_down(seen, job, left):
    late = replace(seen, notice_s=0.0)
    warned = replace(seen, notice_s=max(job.checkpoint_write_s, 1.0))
    assert (spot_speed(warned, job, NODES) >= spot_speed(late, job, NODES) * (1 - 1e-12)).all()
    assert (spot_speed(seen, job, NODES, np.full(4, left)) >= spot_speed(seen, job, NODES)).all()


def test_one_node_without_notice_is_the_renewal_formula_of_daly():
    """A segment of T + w takes exp(L d) (exp(L (T + w)) - 1) / L on average, and T of it is work."""
    job = a_job(restart_s=100.0, checkpoint_write_s=20.0)
    hits = 2.0 / 3600
    every = math.sqrt(2 * 20.0 / hits)
    segment_s = math.exp(hits * 160.0) * math.expm1(hits * (every + 20.0)) / hits
    assert spot_speed(Reclaims(per_h=2.0, boot_s=60.0), job, [1])[0] == pytest.approx(every / segment_s)


def test_with_a_notice_only_the_pause_is_lost():
    job = a_job(restart_s=100.0, checkpoint_write_s=20.0)
    noticed = Reclaims(per_h=2.0, boot_s=150.0, notice_s=120.0)
    assert spot_speed(noticed, job, [3])[0] == pytest.approx(math.exp(-6.0 / 3600 * (100.0 + 30.0)))
    too_short = Reclaims(per_h=2.0, boot_s=150.0, notice_s=10.0)  # to write a checkpoint
    assert spot_speed(too_short, job, [3])[0] < math.exp(-6.0 / 3600 * (100.0 + 140.0))


@given(spot_jobs, st.sampled_from(NODES.tolist()))
def test_where_reclaims_are_rare_it_is_the_first_order_of_daly(job, nodes):
    speed = spot_speed(Reclaims(per_h=1e-4, boot_s=60.0), job, [nodes])[0]
    hits, write_s = nodes * 1e-4 / 3600, job.checkpoint_write_s
    every_s = math.sqrt(2 * write_s / hits) if write_s else job.checkpoint_every_s
    lost = write_s / every_s + hits * (every_s / 2 + job.restart_s + 60.0)
    assert 1.0 - speed == pytest.approx(lost, rel=0.02)


def test_where_all_nodes_go_at_once_width_is_free_of_risk():
    assert hits_per_h(Reclaims(per_h=0.5, share=1.0), NODES).tolist() == [0.5] * 4
    one_by_one, some = hits_per_h(Reclaims(per_h=0.5), NODES), hits_per_h(Reclaims(per_h=0.5, share=0.1), NODES)
    assert some[0] == pytest.approx(one_by_one[0])  # the hazard of a node is what it is
    assert (some[1:] < one_by_one[1:]).all()


# ---------------------------------------------------------------------- the twin


def rode(rng, cycles, *, hits, wait_s, restart_s, every_s, write_s, left):
    """Work over time of so many cycles, second by second of the story and nothing else."""
    work = time = 0.0
    for _ in range(cycles):
        until_s = rng.exponential(1 / hits)
        time += until_s
        work += until_s if every_s == 0.0 else until_s // (every_s + write_s) * every_s
        while True:  # a recovery, until one is not interrupted
            until_s = rng.exponential(1 / hits)
            trains_s = min(until_s, wait_s) - restart_s if left else 0.0  # narrower, between two restarts
            if trains_s > 0:
                done = trains_s // (every_s + write_s) if every_s else 0
                cut = until_s < wait_s
                work += left * (trains_s if every_s == 0.0 else done * every_s if cut else trains_s - done * write_s)
            if until_s >= wait_s + restart_s:
                time += wait_s + restart_s
                break
            time += until_s
    return work / time


@pytest.mark.parametrize("notice_s", [0.0, 120.0])
@pytest.mark.parametrize("left", [0.0, 0.8])
@pytest.mark.parametrize("per_h", [0.5, 6.0])
def test_the_formula_is_what_many_rides_come_to(notice_s, left, per_h):
    job = a_job(restart_s=40.0, checkpoint_write_s=15.0)
    seen = Reclaims(per_h=per_h, notice_s=notice_s, boot_s=notice_s + 400.0)
    hits = 4 * per_h / 3600
    every_s = 0.0 if notice_s else math.sqrt(2 * 15.0 / hits)
    facts = {"hits": hits, "wait_s": 400.0, "restart_s": 40.0, "every_s": every_s, "write_s": 15.0, "left": left}
    rng = np.random.default_rng(7)
    rides = [rode(rng, 400, **facts) for _ in range(40)]
    exact = spot_speed(seen, job, [4], np.array([left]))[0]
    assert abs(np.mean(rides) - exact) < 4 * np.std(rides) / math.sqrt(len(rides)) + 1e-3 * exact


def rode_where_nodes_sell_out(rng, hits, facts, left):
    """Work over time of many hits: each leaves survivors who go on, or nobody, who then waits for the pool."""
    work = time = 0.0
    cycle_s = facts.every_s + facts.write_s
    for _ in range(40_000):
        alone = rng.random() < facts.none_left
        wait_s = facts.boot_s + (0.0 if alone else facts.sold_out_s)
        time += facts.sold_out_s if alone else 0.0  # nothing is held, so nothing is lost
        until_s = rng.exponential(1 / hits)
        time += until_s
        if not alone and (window_s := min(until_s, wait_s) - facts.restart_s) > 0:
            times = window_s // cycle_s
            whole = until_s >= wait_s
            work += left * (window_s - times * facts.write_s if whole else times * facts.every_s)
        trains_s = until_s - wait_s - facts.restart_s
        work += max(0.0, trains_s) // cycle_s * facts.every_s
    return work / time


@pytest.mark.parametrize("none_left", [0.0, 0.3, 1.0])
def test_pools_that_sell_out_and_hits_that_leave_nobody_are_what_many_rides_come_to(none_left):
    hits, left = 1 / 1500, 0.8
    facts = Recovery(every_s=300.0, write_s=20.0, boot_s=120.0, restart_s=40.0, sold_out_s=900.0, none_left=none_left)
    exact = float(speed_kept(np.array([hits]), facts, np.array([left]))[0])
    assert rode_where_nodes_sell_out(np.random.default_rng(3), hits, facts, left) == pytest.approx(exact, rel=0.02)
    if none_left == 1.0:  # then it is the same as to wait
        assert float(speed_kept(np.array([hits]), facts)[0]) == pytest.approx(exact)


def test_a_hit_costs_what_is_lost_but_not_to_writing():
    facts = Recovery(every_s=300.0, write_s=20.0, boot_s=120.0, restart_s=40.0)
    rare = np.array([1e-7])
    cost_s = hit_cost_s(rare, speed_kept(rare, facts), facts.every_s, facts.write_s)
    # A pause, and on average half a cycle that is done again, at the pace of a job that also writes.
    assert cost_s[0] == pytest.approx(300.0 / 320.0 * (120.0 + 40.0 + 320.0 / 2), rel=1e-3)
    assert hit_cost_s(np.zeros(1), np.ones(1)).tolist() == [0.0]


def test_losses_add_up_where_nodes_are_long_gone_but_never_to_more_than_there_are():
    hits, nodes = np.array([1e-9, 1e-3, 10.0]), np.array(16.0)
    missing = missing_nodes(hits, np.array(2.0), nodes, np.array(3600.0))
    assert missing[0] == pytest.approx(2.0, rel=1e-5)
    assert (np.diff(missing) > 0).all()
    assert missing[-1] <= 16.0


# ---------------------------------------------------------------------- belief


def state(lost=0.0, held_h=0.0, **facts):
    offer = an_offer(**{"hazard_per_h": 0.5, "notice_s": 60.0, **facts})
    return OfferState(offer=offer, price=offer.price, limit=Limit(), held=0, available=None, lost=lost, held_h=held_h)


def test_what_is_said_is_believed_until_something_was_seen():
    assert believe_reclaims([state()]) == Reclaims(per_h=0.5, notice_s=60.0)
    assert believe_reclaims([state(lost=100.0, held_h=1.0, market=Market.ON_DEMAND)]) == NO_RECLAIMS
    assert believe_reclaims([state(lost=100.0, held_h=1.0, hazard_per_h=0.0)]) == NO_RECLAIMS


@settings(max_examples=examples(50))
@given(st.floats(0.05, 5.0), st.floats(0.05, 3.0), st.integers(0, 2**16))
def test_belief_comes_to_what_is_true_within_its_rounding(said, true, seed):
    held_h = 1_000.0 / true
    lost = float(np.random.default_rng(seed).poisson(true * held_h))
    found = believe_reclaims([state(lost, held_h, hazard_per_h=said)]).per_h
    blend = (3.0 + lost) / (3.0 / said + held_h)
    assert 2**-0.26 < found / blend < 2**0.26
    assert abs(math.log(blend / true)) < 0.6


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_nonsense_is_refused(share):
    with pytest.raises(InvalidValue):
        Reclaims(per_h=1.0, share=share)


def test_checkpoints_are_rarer_when_writing_is_dear_and_more_frequent_when_losses_are():
    found = checkpoint_interval_s([10.0, 10.0, 10.0, 40.0], np.array([0.5, 2.0, 0.0, 0.5]) / 3600.0)
    assert found == pytest.approx([math.sqrt(2 * 10 * 7200), math.sqrt(10 * 3600), math.inf, math.sqrt(2 * 40 * 7200)])


def test_hits_to_be_expected_are_those_believed_and_rare_is_not_never():
    spot, owned = an_offer("s", market=Market.SPOT), an_offer("o", market=Market.ON_DEMAND)
    stated = replace(spot, hazard_per_h=0.5)

    def expected(offer, **seen):
        state = OfferState(offer=offer, price=offer.price, limit=Limit(), held=0, available=None, **seen)
        return expected_hits_per_h(state, 4)

    assert [expected(offer) for offer in (spot, owned, stated)] == pytest.approx([0.4, 0.004, 2.0])
    assert expected(replace(stated, reclaim_share=1.0)) == pytest.approx(0.5)  # all four at once
    assert expected(stated, lost=3.0) == pytest.approx(4.0)  # three seen weigh as much as what is said
