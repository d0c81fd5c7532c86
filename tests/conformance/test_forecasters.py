"""What every registered forecaster must do, whoever wrote it."""

from __future__ import annotations

import dataclasses
import inspect
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet import plugins
from sublet.errors import InvalidValue
from sublet.market.forecast.score import DEFAULT, FORECASTERS, PERSISTENCE, forecast_errors, forecaster
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet.market.traces import load_trace

NAMES = plugins.names(FORECASTERS)
MOST = 32
SECONDS_AT_MOST = 0.25  # a tick at a time; statsmodels takes 15 ms, everyone else less than 2

every_forecaster = pytest.mark.parametrize("name", NAMES)
pasts = st.one_of(
    st.lists(st.integers(0, MOST), min_size=1, max_size=90),
    st.tuples(st.integers(0, MOST), st.integers(1, 90)).map(lambda flat: [flat[0]] * flat[1]),
    st.lists(st.integers(-3, 3), min_size=1, max_size=90).map(lambda moves: np.clip(16 + np.cumsum(moves), 0, MOST)),
).map(lambda past: np.array(past, dtype=np.float64))


def make(name):
    return forecaster(name, most=MOST)


def test_there_are_the_forecasters_that_we_speak_of():
    assert {"persistence", "drift", "arima", "parcae", "markov", "skilled"} <= set(NAMES)
    assert {PERSISTENCE, DEFAULT} <= set(NAMES)


@every_forecaster
def test_a_forecaster_is_a_frozen_value_with_one_verb_and_a_sentence(name):
    kind = plugins.load(FORECASTERS, name)
    assert kind.__dataclass_params__.frozen
    assert "most" in {field.name for field in dataclasses.fields(kind)}
    assert [verb for verb in vars(kind) if not verb.startswith("_") and inspect.isfunction(vars(kind)[verb])] == [
        "forecast"
    ]
    assert make(name) == make(name)
    assert len({make(name), make(name)}) == 1
    sentence = (inspect.getdoc(kind) or "").partition("\n")[0]
    assert sentence.endswith(".")
    assert len(sentence) <= 120


@every_forecaster
@settings(max_examples=40)
@given(past=pasts, steps=st.integers(1, 20))
def test_a_forecast_has_the_right_length_is_finite_and_within_what_there_can_be(name, past, steps):
    ahead = make(name).forecast(past, steps)
    assert ahead.shape == (steps,)
    assert ahead.dtype == np.float64
    assert np.isfinite(ahead).all()
    assert (ahead >= 0.0).all()
    assert (ahead <= MOST).all()
    falls = np.maximum(-np.diff(np.concatenate([past[-1:], ahead])), 0.0)
    assert (falls <= np.concatenate([past[-1:], ahead[:-1]])).all()  # nobody loses more than there is


@every_forecaster
@settings(max_examples=25)
@given(past=pasts, later=pasts, steps=st.integers(1, 14))
def test_a_forecast_never_looks_ahead_and_changes_nothing(name, past, later, steps):
    whole = np.concatenate([past, later])
    other = np.concatenate([past, MOST - later])
    first = make(name).forecast(whole[: len(past)], steps)
    make(name).forecast(other, steps)  # what it may have learnt from another future is no use now
    assert make(name).forecast(other[: len(past)], steps).tolist() == first.tolist()
    assert whole.tolist() == [*past.tolist(), *later.tolist()]


@every_forecaster
def test_the_order_of_questions_does_not_matter(name):
    trace = load_trace("bamboo-p3").per_tick(60.0).astype(float)
    asked = (700, 400, 450, 451, 452, 500, 401, 682)
    forwards = {now: make(name).forecast(trace[:now], 12).tolist() for now in sorted(asked)}
    assert {now: make(name).forecast(trace[:now], 12).tolist() for now in asked} == forwards


@every_forecaster
@pytest.mark.parametrize("length", [1, 2, 3, 12, 13, 400])
@pytest.mark.parametrize("value", [8.0, 20.0, 32.0])
def test_a_flat_past_stays(name, length, value):
    assert make(name).forecast(np.full(length, value), 12).tolist() == [value] * 12


@every_forecaster
def test_an_empty_market_stays_empty_but_for_who_has_a_lower_bound(name):
    lower = 8.0 if name == "parcae" else 0.0  # as published: never less than a quarter of what was asked for
    assert make(name).forecast(np.zeros(400), 12).tolist() == [lower] * 12


@every_forecaster
def test_a_past_above_the_bound_is_forecast_within_it(name):
    assert (make(name).forecast(np.array([30.0, 36.0, 40.0] * 20), 12) <= MOST).all()


@every_forecaster
def test_no_past_no_future_and_a_past_with_a_hole_are_refused(name):
    for past, steps in ((np.zeros(0), 12), (np.ones(5), 0), (np.array([3.0, np.nan, 4.0]), 12)):
        with pytest.raises(InvalidValue):
            make(name).forecast(past, steps)
    with pytest.raises(InvalidValue, match="most"):
        forecaster(name, most=-1)


@every_forecaster
def test_a_forecast_is_quick_when_ticks_come_one_by_one(name):
    trace = np.tile(load_trace("bamboo-p3").per_tick(60.0).astype(float), 4)
    make(name).forecast(trace[:2000], 12)
    times_s = []
    for now in range(2001, 2031):
        start_s = perf_counter()
        make(name).forecast(trace[:now], 12)
        times_s.append(perf_counter() - start_s)
    assert sorted(times_s)[len(times_s) // 2] < SECONDS_AT_MOST


@every_forecaster
def test_somebody_who_is_judged_knows_only_what_was_known(name):
    """The figures of a table up to a moment do not depend on what came after it."""
    calm, wild = [16, 14, 15, 18] * 20, [0, 32] * 6
    traces = [trace_from([*calm, *end]) for end in ([16] * 12, wild)]
    ahead = [make(name).forecast(trace.per_tick(60.0)[:80].astype(float), 12).tolist() for trace in traces]
    assert ahead[0] == ahead[1]
    assert [forecast_errors(t, {name: make(name)}, moments=9)[name].forecasts for t in traces] == [9, 9]


def trace_from(instances):
    steps = Steps(t_s=60.0 * np.arange(len(instances)), value=np.array(instances, dtype=np.int64)).compact()
    span_s = 60.0 * len(instances)
    return SpotTrace(name="made", series={"z": steps}, end_s={"z": span_s}, span_s=span_s, max_available=MOST)
