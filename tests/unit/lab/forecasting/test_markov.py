"""Forecasters that learn from the whole past."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.market.forecast import Persistence
from sublet.market.spot import SpotTrace
from sublet.market.steps import Steps
from sublet_lab.forecasting.arima import Autoregression
from sublet_lab.forecasting.markov import Kernel
from sublet_lab.forecasting.score import forecast_error

LEARNERS = (Kernel(), Autoregression(), Autoregression(changes=True))


def trace_from(instances):
    steps = Steps(t_s=60.0 * np.arange(len(instances)), value=np.array(instances, dtype=np.int64)).compact()
    span_s = 60.0 * len(instances)
    return SpotTrace(name="made", series={"z": steps}, end_s={"z": span_s}, span_s=span_s, max_available=32)


def weighted_median(values, weights):
    """The twin: the first value, in order, at which half of the weight is reached."""
    heap = 0.0
    for value, weight in sorted(zip(values, weights, strict=True), key=lambda pair: pair[0]):
        heap += weight
        if heap >= 0.5 * sum(weights) - 1e-12:
            return value
    raise AssertionError


@pytest.mark.parametrize("learner", LEARNERS)
@given(past=st.lists(st.integers(0, 32), min_size=1, max_size=60), steps=st.integers(1, 15))
def test_a_forecast_is_finite_and_never_below_0(learner, past, steps):
    ahead = learner.forecast(np.array(past, dtype=float), steps)
    assert ahead.shape == (steps,)
    assert np.isfinite(ahead).all()
    assert (ahead >= 0).all()


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_a_flat_past_stays(learner, length):
    assert (learner.forecast(np.full(length, 7.0), 5) == 7.0).all()


def test_the_kernel_is_the_weighted_median_of_what_came_after():
    rng = np.random.default_rng(3)
    past, model, steps = rng.integers(4, 12, size=40).astype(float), Kernel(late=3, calm=0.5), 4
    lost = [sum(max(0.0, past[i - 1] - past[i]) for i in range(max(1, t - 2), t + 1)) for t in range(40)]
    wide = max(1.0, 0.1 * past.max())
    moments = range(40 - steps)
    weights = [np.exp(-0.5 * (((past[t] - past[-1]) / wide) ** 2 + ((lost[t] - lost[-1]) / 2.0) ** 2)) for t in moments]
    expected = [
        past[-1] + weighted_median([0.0, *(past[t + h] - past[t] for t in moments)], [0.5, *weights])
        for h in range(1, steps + 1)
    ]
    assert model.forecast(past, steps).tolist() == expected


def test_the_kernel_learns_a_market_that_always_comes_back():
    saw = trace_from([20, 20, 20, 14, 14, 14] * 60)
    kernel, still = (forecast_error(saw, each, horizon=6, warm_up=120) for each in (Kernel(late=3), Persistence()))
    assert kernel.mean < 0.5 * still.mean


def test_an_autoregression_of_levels_returns_to_the_mean():
    past = np.array([10.0, 12, 9, 11, 10, 9, 11, 10, 12, 9, 10, 20])
    ahead = Autoregression().forecast(past, 20)
    assert 8.0 < ahead[-1] < 14.0
