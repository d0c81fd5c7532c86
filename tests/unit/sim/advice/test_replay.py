"""The replay of an advised cluster: a twin that goes second by second, laws, and agreement with the adviser's sums."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.advise.frontier import Limits
from sublet.errors import InvalidValue
from sublet.sim.advice.replay import WINDOWS, replay_choice, replayed
from tests.rigs.advised import ON_DEMAND, SPOT, chosen, trace
from tests.rigs.sizes import examples


def calm_trace(hazard_per_h=0.5, nodes=100, hours=200.0):
    """One of many nodes is lost now and then and is soon replaced."""
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(3600.0 / hazard_per_h / nodes, 40_000))
    at_s = at_s[at_s < hours * 3600.0 - 60.0]
    at_s = at_s[np.concatenate(([True], np.diff(at_s) > 2.0))]
    rows = [(0.0, nodes), *(row for t in at_s.tolist() for row in ((t, nodes - 1), (t + 1.0, nodes)))]
    return trace(rows, hours * 3600.0)


class Sure:
    """Chance that never strikes: the first window begins at once, and of the nodes just the share is lost."""

    def permutation(self, values):
        return np.asarray(values)

    def random(self, size=None):
        return 0.999 if size is None else np.zeros(size)

    def binomial(self, n, p):
        return np.rint(n * p).astype(int)

    def hypergeometric(self, good, bad, sample):
        return round(good * sample / (good + bad))


# ---------------------------------------------------------------------- one window


def by_the_second(value, span, train, every, write, first, again):
    """The same rules, told as a state machine with a tick of one second."""
    begin = next(t for t in range(span) if value[t])
    left = saved = train
    waiting, pause, writing, since = False, first, 0, 0
    for tick in count():
        t = (begin + tick) % span
        if tick and t and value[t] < value[t - 1]:
            left, waiting, writing, since = saved, True, 0, 0
        if waiting and value[t]:
            waiting, pause = False, again
        if waiting:
            continue
        if pause:
            pause -= 1
        elif writing:
            writing -= 1
            saved = left if not writing else saved
        else:
            left, since = left - 1, since + 1
            if not left:
                return tick + 1
            if since == every:
                writing, since = write, 0
    raise AssertionError


@settings(max_examples=examples(60))
@given(
    holds=st.lists(st.integers(5, 400), min_size=2, max_size=9),
    train=st.integers(1, 900),
    every=st.integers(10, 90),
    write=st.integers(1, 9),
)
def test_a_window_goes_as_a_clock_that_ticks_each_second(holds, train, every, write):
    holds = [*holds, 60 + every + write]  # long enough for a checkpoint, so that it ends
    states = [(len(holds) - place) % 2 for place in range(len(holds))]
    starts = np.cumsum([0, *holds])
    rows = [(float(t), 4 * state) for t, state in zip(starts, states, strict=False)]
    value = np.repeat([4 * state for state in states], holds)
    choice, ask = chosen(4.0 * train)
    choice = replace(choice, checkpoint_every_s=float(every), checkpoint_write_s=float(write))
    found = replayed(choice, ask, [trace(rows, float(starts[-1]))], rng=Sure(), windows=1)
    ticks = by_the_second(value, int(starts[-1]), train, every, write, 30, 30 + write)
    assert found.hours_W[0] * 3600.0 == pytest.approx(ticks, abs=1e-6)


def test_nodes_that_are_gone_are_not_paid_for():
    # Trained from 30 to 1000 with 9 checkpoints; 500 s without nodes; 30 + 5 s to begin again, and 110 of 1010 s left.
    rows = [(0.0, 4), (1000.0, 0), (1500.0, 4)]
    choice, ask = chosen(4 * 1010.0)
    choice = replace(choice, checkpoint_every_s=100.0, checkpoint_write_s=5.0)
    found = replayed(choice, ask, [trace(rows, 9000.0)], rng=Sure(), windows=1)
    end_s = 1500.0 + 35.0 + 110.0 + 5.0
    assert found.hours_W[0] == pytest.approx(end_s / 3600.0)
    assert found.usd_W[0] == pytest.approx(4 * 0.25 * (end_s - 500.0) / 3600.0)
    assert found.reclaims_W.tolist() == [1.0]


def test_what_never_gets_to_a_checkpoint_never_ends():
    rows = [(float(t), 4 * (t % 80 == 0)) for t in range(0, 4000, 40)]
    choice, ask = chosen(4 * 500.0)
    choice = replace(choice, checkpoint_every_s=100.0, checkpoint_write_s=5.0)
    found = replayed(choice, ask, [trace(rows, 4000.0)], rng=np.random.default_rng(0), windows=4)
    assert found.hours == found.usd == (math.inf,) * 3
    assert found.share_within(Limits()) == 0.0


# ---------------------------------------------------------------------- many windows


def test_on_demand_only_the_speed_varies():
    choice, ask = chosen(4 * 36_000.0, [ON_DEMAND], keeper="nothing", steady=4, spread=0.3)
    found = replay_choice(choice, ask, rng=np.random.default_rng(1))
    assert (found.windows, found.traces, found.reclaims) == (WINDOWS, (), (0.0, 0.0, 0.0))
    for told, z in zip(found.hours, (-1.2816, 0.0, 1.2816), strict=True):
        assert told == pytest.approx(30.0 / 3600.0 + 10.0 * math.exp(0.3 * z), rel=0.005)
    assert [usd / 4.0 for usd in found.usd] == pytest.approx(list(found.hours))
    sure = replace(choice, spread=0.0)
    assert list(replay_choice(sure, ask, rng=np.random.default_rng(1)).hours) == pytest.approx([choice.hours] * 3)


@pytest.mark.parametrize("notice_s", [0.0, 5.0, 120.0])  # of these, 5 covers the writing of a checkpoint, not the boot
@pytest.mark.parametrize(
    ("keeper", "nodes", "steady"),
    [("storage", 1, 0), ("storage", 8, 0), ("anchors", 4, 0), ("nodes", 4, 1), ("nodes", 8, 4)],
)
def test_where_nodes_are_lost_one_by_one_the_mean_is_the_advisers(keeper, nodes, steady, notice_s):
    offers = [replace(SPOT, hazard_per_h=0.5, notice_s=notice_s), *([ON_DEMAND] if steady else [])]
    choice, ask = chosen(nodes * 100_000.0, offers, keeper=keeper, nodes=nodes, steady=steady)
    found = replayed(choice, ask, [calm_trace()], rng=np.random.default_rng(2), windows=100)
    assert float(found.hours_W.mean()) == pytest.approx(choice.hours, rel=0.02)
    assert float(found.usd_W.mean()) == pytest.approx(choice.usd, rel=0.02)
    assert float(found.reclaims_W.mean()) == pytest.approx(choice.reclaims, rel=0.1)


def test_survivors_that_go_on_end_sooner_than_those_that_wait():
    rows = [(0.0, 4)]
    for t in range(5000, 295_000, 10_000):
        rows += [(float(t), 3), (float(t + 4000), 4)]
    choice, ask = chosen(4 * 100_000.0, fewer=1.0)
    choice = replace(choice, checkpoint_every_s=500.0, checkpoint_write_s=2.0)
    waits, goes_on = (
        replayed(replace(choice, goes_on=way), ask, [trace(rows, 300_000.0)], rng=np.random.default_rng(0))
        for way in (False, True)
    )
    assert goes_on.hours_W.mean() < 0.85 * waits.hours_W.mean()
    # Three of four work on for four of every ten thousand seconds, and nothing is paid for the fourth.
    assert goes_on.hours_W.mean() * 3600 == pytest.approx(100_000 / (1 - 0.4 / 4), rel=0.06)


def test_a_ride_with_too_few_nodes_is_as_long_as_counted_by_hand():
    # Of 970 s on four nodes 900 are kept; restart and read in 25 s; three nodes until the fourth comes at 1510 s;
    # a checkpoint, a restart and a read in 30 s; and the rest on four.
    rows = [(0.0, 4), (1000.0, 3), (1500.0, 4)]
    choice, ask = chosen(4 * 2000.0, fewer=1.0)
    choice = replace(choice, checkpoint_every_s=100.0, checkpoint_write_s=5.0, goes_on=True)
    found = replayed(choice, ask, [trace(rows, 90_000.0)], rng=Sure(), windows=1)
    trained_s = 1510.0 - 1025.0
    done = 900.0 + 0.75 * (trained_s // 105 * 100 + min(trained_s % 105, 100))
    left = 2000.0 - done
    end_s = 1510.0 + 30.0 + left + (math.ceil(left / 100) - 1) * 5.0
    assert found.hours_W[0] * 3600 == pytest.approx(end_s)
    assert found.usd_W[0] == pytest.approx(0.25 * (4 * end_s - 500.0) / 3600)


def test_equal_seeds_give_equal_answers_and_others_differ():
    choice, ask = chosen(4 * 50_000.0, spread=0.1)
    first, again, other = (replay_choice(choice, ask, rng=np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert (first.hours, first.usd, first.reclaims) == (again.hours, again.usd, again.reclaims)
    assert first.hours != other.hours
    assert first.traces == ("bamboo-p3", "bamboo-gcp")
    assert first.hours.p10 < first.hours.p50 < first.hours.p90


def test_more_reclaims_take_longer():
    choice, ask = chosen(4 * 50_000.0)
    calm, usual, rough = (
        float(replay_choice(choice, replace(ask, reclaims=times), rng=np.random.default_rng(0)).hours_W.mean())
        for times in (0.0, 1.0, 3.0)
    )
    assert calm < usual < rough


def test_a_long_job_is_extrapolated_from_its_first_reclaims():
    (short, ask), (long, longer) = chosen(8 * 1e6, nodes=8), chosen(8 * 1e8, nodes=8)
    assert long.reclaims > 50_000
    some, many = (
        replay_choice(each, of, rng=np.random.default_rng(0)).hours.p50 for each, of in ((short, ask), (long, longer))
    )
    assert many == pytest.approx(100.0 * some, rel=0.05)


def test_peers_that_are_lost_together_cost_more():
    rows = [(0.0, 40)]
    for t in range(5000, 95_000, 5000):
        rows += [(float(t), 20), (float(t + 60), 40)]
    choice, ask = chosen(4 * 50_000.0)
    alone, both = (
        replayed(
            replace(choice, keeper=way, copied_every_s=3600.0),
            ask,
            [trace(rows, 100_000.0)],
            rng=np.random.default_rng(0),
        )
        for way in ("storage", "peers")
    )
    assert both.hours_W.mean() > 1.05 * alone.hours_W.mean()


def test_spot_needs_a_trace_in_which_nodes_can_be_had():
    choice, ask = chosen(4000.0)
    with pytest.raises(InvalidValue, match="traces"):
        replayed(choice, ask, [], rng=np.random.default_rng(0))
    with pytest.raises(InvalidValue, match="trace"):
        replayed(choice, ask, [trace([(0.0, 0), (10.0, 0)], 20.0, most=1)], rng=np.random.default_rng(0))
    with pytest.raises(InvalidValue, match="windows"):
        replay_choice(choice, ask, rng=np.random.default_rng(0), windows=0)
