"""Intervals of tiers: a twin that tries all of them, laws, and what a loss costs as it is counted second by second."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.perf.preemption import checkpoint_interval_s
from sublet.perf.preemption.tiers import Ladder, best_tiering, tiering
from tests.rigs.sizes import examples

costs = st.floats(0.01, 100.0)
rates = st.floats(1e-6, 1e-3)
leasts = st.one_of(st.just(0.0), st.floats(0.1, 100.0))
TIMES = np.arange(1.0, 17.0)
BASES_S = np.geomspace(1.0, 1e6, 60)


def ladders(tiers):
    several = (st.tuples(*[each] * tiers) for each in (rates, costs, leasts))
    return st.builds(ladder, *several)


def ladder(hits, cost, least=0.0, **facts):
    column = [np.asarray(each, dtype=float).reshape(-1, 1) for each in (hits, cost, np.broadcast_to(least, len(hits)))]
    return Ladder(hits_per_s=column[0], cost_s=column[1], least_s=column[2], **facts)


def by_trying_all(of, most_slowdown):
    """The least that is lost by any of many intervals of three tiers, each tier written or not."""
    least = of.arrays()[-1]
    best = math.inf
    for used in product((True, False), repeat=3):
        several = [TIMES if used[at] and any(used[:at]) else TIMES[:1] for at in (1, 2)]
        base, second, third = np.meshgrid(BASES_S, *several, indexing="ij")
        every = np.stack([base, base * second, base * second * third]).reshape(3, -1)
        every[~np.array(used)] = math.inf
        found = tiering(of, every)
        fits = (found.slower_C <= most_slowdown) & (every >= least).all(axis=0)
        best = min(best, float(found.lost[fits].min(initial=math.inf)))
    return best


@settings(max_examples=examples(20), deadline=None)
@given(of=ladders(3), most=st.floats(0.001, 0.5))
def test_no_intervals_lose_less_than_those_that_are_found(of, most):
    found = best_tiering(of, most_slowdown=most)
    assert float(found.lost[0]) <= by_trying_all(of, most) * (1 + 1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(of=ladders(3), most=st.floats(0.001, 0.5), skips=st.booleans())
def test_intervals_are_multiples_and_within_all_limits(of, most, skips):
    found = best_tiering(of, most_slowdown=most, skips=skips)
    assert float(found.slower_C[0]) <= most * (1 + 1e-9)
    every, cost, least = found.every_s_KC[:, 0], of.arrays()[1][:, 0], of.arrays()[4][:, 0]
    used = np.isfinite(every)
    assert used[-1]  # something loses all tiers but the last
    assert used.all() or skips
    assert (every[used] >= least[used] * (1 - 1e-12)).all()
    assert (every[used] >= cost[used] / most * (1 - 1e-9)).all()
    ratios = every[used][1:] / every[used][:-1]
    assert ratios == pytest.approx(np.rint(ratios), rel=1e-9)
    assert (np.rint(ratios) >= 1).all()


@settings(max_examples=examples(40), deadline=None)
@given(of=ladders(2), at=st.integers(0, 1), more=st.floats(1.01, 50.0))
def test_a_dearer_copy_is_made_less_often_and_a_likelier_loss_makes_copies_more_frequent(of, at, more):
    hits, cost, _, _, least = (each.copy() for each in of.arrays())
    before = best_tiering(of).every_s_KC[at, 0]
    cost[at] *= more
    dearer = best_tiering(Ladder(hits_per_s=hits, cost_s=cost, least_s=least)).every_s_KC[at, 0]
    assert dearer >= before * (1 - 1e-9)
    cost[at] /= more
    hits[at] *= more
    likelier = best_tiering(Ladder(hits_per_s=hits, cost_s=cost, least_s=least)).every_s_KC
    covers = likelier[at, 0] if np.isfinite(likelier[at, 0]) else likelier[-1, 0]
    assert covers <= (before if math.isfinite(before) else best_tiering(of).every_s_KC[-1, 0]) * (1 + 1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(of=ladders(3), most=st.floats(0.001, 0.5))
def test_tiers_are_never_worse_than_any_one_of_them_alone(of, most):
    hits, cost, _, _, least = of.arrays()
    joint = float(best_tiering(of, most_slowdown=most).lost[0])
    # Only the last survives all losses; what one tier alone loses is what it costs to write it for all of them.
    alone = Ladder(hits_per_s=hits.sum(axis=0, keepdims=True), cost_s=cost[-1:], least_s=least[-1:])
    assert joint <= float(best_tiering(alone, most_slowdown=most).lost[0]) * (1 + 1e-9)
    nearer = [math.inf, math.inf, math.inf]
    for at in (0, 1):
        every = np.array([[*nearer[:at], BASES_S[30], *nearer[at + 1 :]]]).T
        assert math.isinf(tiering(of, every).lost[0])  # a loss of all that is nearer has nothing to go on from


def test_one_tier_alone_has_the_interval_of_young_and_daly_to_the_digit():
    hits = np.array([[1 / 3600, 0.1, 0.0, 1e-5]])
    found = best_tiering(Ladder(hits_per_s=hits, cost_s=50.0))
    assert found.every_s_KC.tolist() == [checkpoint_interval_s(50.0, hits[0]).tolist()]
    assert found.lost[2] == 0.0


def test_a_free_tier_is_always_there_and_takes_its_losses_from_the_next():
    with_peers = best_tiering(ladder([1e-3, 1e-5], [0.0, 5.0]))
    assert with_peers.every_s_KC[:, 0].tolist() == [0.0, pytest.approx(math.sqrt(2 * 5.0 / 1e-5))]
    alone = best_tiering(ladder([1e-3 + 1e-5], [5.0]))
    assert with_peers.lost[0] < alone.lost[0] / 5


def test_tiers_whose_intervals_would_fall_are_written_together():
    found = best_tiering(ladder([1e-6, 1e-3], [1.0, 1.0]), skips=False)
    assert found.every_s_KC[0, 0] == found.every_s_KC[1, 0] == pytest.approx(math.sqrt(2 * 2.0 / (1e-3 + 1e-6)))
    assert math.isinf(best_tiering(ladder([1e-6, 1e-3], [1.0, 1.0])).every_s_KC[0, 0])  # the first is not worth it


def test_a_loss_costs_what_no_copy_had_as_counted_second_by_second():
    every, lag = np.array([[10.0], [40.0]]), np.array([[3.0], [7.0]])
    of = Ladder(hits_per_s=np.array([[2e-4], [1e-4]]), cost_s=0.5, lag_s=lag, read_s=np.array([[5.0], [9.0]]))
    at_s = 1000.0 + (np.arange(40_000) + 0.5) / 1000.0  # every moment of a whole round is as likely
    lost = [
        np.mean(at_s - np.floor((at_s - late) / each) * each) for each, late in zip(every[:, 0], lag[:, 0], strict=True)
    ]
    found = tiering(of, every)
    assert found.redone_C[0] == pytest.approx(2e-4 * lost[0] + 1e-4 * lost[1], rel=1e-4)
    assert found.resuming_C[0] == pytest.approx(2e-4 * 5.0 + 1e-4 * 9.0)
    assert found.slower_C[0] == pytest.approx(0.5 / 10.0 + 0.5 / 40.0)


def test_many_cases_at_once_are_each_as_if_alone():
    rng = np.random.default_rng(4)
    hits, cost, least = (10 ** rng.uniform(*low_high, (3, 21)) for low_high in ((-6, -3), (-2, 2), (-1, 2)))
    together = best_tiering(Ladder(hits_per_s=hits, cost_s=cost, least_s=least), most_slowdown=0.02)
    for at in range(0, 21, 7):
        alone = best_tiering(ladder(hits[:, at], cost[:, at], least[:, at]), most_slowdown=0.02)
        assert together.every_s_KC[:, at].tolist() == alone.every_s_KC[:, 0].tolist()
        assert together.lost[at] == alone.lost[0]
