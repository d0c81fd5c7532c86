"""The forecaster that is used when in doubt: it leaves persistence only for who has proved to know better."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.errors import InvalidValue
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.market.traces import load_trace
from sublet_lab.forecasting.markov import Kernel
from sublet_lab.forecasting.score import DEFAULT, PERSISTENCE, forecast_errors, forecasters_for
from sublet_lab.forecasting.simple import Drift
from sublet_lab.forecasting.skilled import NOBODY, Skilled, _choose_trusted
from sublet_lab.forecasting.table import error_row, readable_traces
from tests.rigs.sizes import examples


def trace_from(instances):
    steps = Steps(t_s=60.0 * np.arange(len(instances)), value=np.array(instances, dtype=np.int64)).compact()
    span_s = 60.0 * len(instances)
    return SpotTrace(name="made", series={"z": steps}, end_s={"z": span_s}, span_s=span_s, max_available=32)


def errors_on(trace, moments=None):
    names = {PERSISTENCE, DEFAULT}
    who = {name: each for name, each in forecasters_for(trace).items() if name in names}
    found = forecast_errors(trace, who, moments=moments)
    return found[DEFAULT], found[PERSISTENCE]


def walk(seed, ticks=1500):
    """Losses in bulk, refills one by one, at random: nothing to be foretold but that a full market loses."""
    rng, now, path = np.random.default_rng(seed), 24, []
    for _ in range(ticks):
        move = rng.choice([0, 1, -int(rng.integers(1, 6))], p=[0.8, 0.14, 0.06])
        now = int(np.clip(now + move, 0, 32))
        path.append(now)
    return path


@pytest.mark.parametrize("name", list(readable_traces(bundled_only=True)))
def test_the_default_is_never_worse_than_persistence_on_a_real_trace(name):
    ours, still = errors_on(load_trace(name), moments=150)
    assert (ours.per_step <= still.per_step).all()
    assert (ours.mean < 0.99 * still.mean) == (name == "skynomad-h100")  # where there is something to gain


def test_the_default_learns_a_market_that_always_comes_back():
    saw = list(itertools.chain.from_iterable([20] * 9 + [14] * 9 for _ in range(60)))
    ours, still = errors_on(trace_from(saw), moments=300)
    assert ours.mean < 0.9 * still.mean


@pytest.mark.parametrize("seed", range(6))
def test_by_chance_it_loses_next_to_nothing(seed):
    ours, still = errors_on(trace_from(walk(seed)), moments=200)
    assert ours.mean <= 1.01 * still.mean


def test_a_market_that_turns_costs_little_against_what_was_gained():
    """Two days of a saw that candidates learn, then noise: over all of it the gains stay."""
    saw = list(itertools.chain.from_iterable([20] * 9 + [14] * 9 for _ in range(80)))
    ours, still = errors_on(trace_from([*saw, *walk(5, 1400)]), moments=300)
    assert ours.mean < still.mean


def test_nobody_is_followed_before_there_are_enough_blocks():
    rise = np.arange(0.0, 1000.0)
    skilled = Skilled(candidates=(Drift(damping=1.0),))
    assert skilled.forecast(rise[: 12 * 20], 2).tolist() == [239.0, 239.0]
    assert skilled.forecast(rise[: 12 * 21], 2).tolist() == [252.0, 253.0]


def test_beyond_the_horizon_the_last_judged_step_goes_on():
    rise = np.arange(0.0, 400.0)
    ahead = Skilled(candidates=(Drift(damping=1.0),), horizon=4).forecast(rise, 7)
    assert ahead.tolist() == [400.0, 401.0, 402.0, 403.0, 403.0, 403.0, 403.0]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.lists(st.floats(-8, 8, allow_nan=False), min_size=3, max_size=3),
        min_size=20,
        max_size=60,
    )
)
def test_who_is_trusted_gained_at_least_2_9_times_the_largest_loss(gains):
    gain_CBH = np.array(gains)[None]
    for step, who in enumerate(_choose_trusted(Skilled(candidates=(Drift(),), horizon=3), gain_CBH)):
        if who != NOBODY:
            assert gain_CBH[0, :, step].sum() >= 2.9 * -min(0.0, gain_CBH[0, :, step].min())


def test_a_single_large_loss_ends_the_trust():
    gain_CBH = np.full((1, 60, 1), 0.5) + np.linspace(-0.1, 0.1, 60)[None, :, None]
    of = Skilled(candidates=(Drift(),), horizon=1)
    assert _choose_trusted(of, gain_CBH).tolist() == [0]
    gain_CBH[0, -1, 0] = -30.0
    assert _choose_trusted(of, gain_CBH).tolist() == [NOBODY]


def test_two_histories_that_start_alike_do_not_mix():
    rng = np.random.default_rng(4)
    start = rng.integers(0, 32, 12).astype(float)
    pasts = [np.concatenate([start, rng.integers(0, 32, 600).astype(float)]) for _ in range(2)]
    fresh = [Skilled(most=32, blocks=40 + each).forecast(past, 12).tolist() for each, past in enumerate(pasts)]
    for each, past in enumerate(pasts):
        of = Skilled(most=32, blocks=40 + each)
        of.forecast(pasts[1 - each], 12)
        assert of.forecast(past, 12).tolist() == fresh[each]


def test_a_row_of_the_table_has_everyone_and_the_verdict():
    row = error_row(load_trace("parcae-ladp"), moments=10)
    assert set(row.errors) == set(forecasters_for(load_trace("parcae-ladp")))
    assert row.ok
    assert row.excess == 0.0
    assert row.moments == 10
    assert row.left_out == {}


@pytest.mark.parametrize("wrong", [{"horizon": 0}, {"blocks": 5}, {"least_blocks": 1}, {"proof": 0.0}])
def test_knobs_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidValue):
        Skilled(**wrong)
    assert Skilled(candidates=(Kernel(),)) == Skilled(candidates=(Kernel(),))
