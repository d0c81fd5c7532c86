from __future__ import annotations

import numpy as np
import pytest

from sublet.market.forecast import Persistence
from sublet.market.traces import load_trace
from sublet_lab.forecasting.parcae import ParcaeForecast
from sublet_lab.forecasting.score import forecast_error
from sublet_lab.forecasting.simple import Drift, Foreknown


def test_the_published_forecaster_errs_more_than_persistence_by_about_as_much_as_measured_elsewhere():
    trace = load_trace("bamboo-p3")
    published, calm = forecast_error(trace, ParcaeForecast()), forecast_error(trace, Persistence())
    assert calm.mean < published.mean
    assert published.mean == pytest.approx(2.61, abs=0.2)  # of another fit and other draws


def test_a_flat_past_and_a_short_one_are_forecast_to_stay():
    assert ParcaeForecast().forecast(np.full(40, 20.0), 12).tolist() == [20.0] * 12
    assert ParcaeForecast().forecast(np.array([12.0, 20.0]), 12).tolist() == [20.0] * 12


def test_a_blip_is_not_believed():
    history = np.array([20.0] * 30 + [17.0, 20.0, 20.0, 20.0])
    assert ParcaeForecast().forecast(history, 12).tolist() == [20.0] * 12


def test_the_same_history_has_the_same_forecast_and_stays_within_bounds():
    rng = np.random.default_rng(0)
    for _ in range(200):
        history = np.clip(20 + np.cumsum(rng.integers(-2, 3, 40)), 8, 32).astype(float)
        first = ParcaeForecast(seed=3).forecast(history, 12)
        assert first.tolist() == ParcaeForecast(seed=3).forecast(history, 12).tolist()
        assert (first == np.rint(first)).all()
        assert first.min() >= 0


def test_a_steady_rise_damps_rises_for_good():
    calm, climb = [10.0] * 15, [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0, 22.0]
    forecaster = ParcaeForecast()
    history = np.array(calm + climb)
    assert forecaster._damping(history, 12)[0] == 0.5
    later = np.array(calm + climb + [22.0] * 30)
    assert forecaster._damping(later, 12)[0] == 0.75  # set anew by the last of the rise, and never back to 1
    assert ParcaeForecast(since=len(history) + 12)._damping(later, 12) == (1.0, 1.0)


def test_drift_goes_on_at_half_the_pace():
    assert Drift(window=4).forecast(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), 2).tolist() == [4.5, 5.0]
    assert Drift().forecast(np.array([5.0]), 2).tolist() == [5.0, 5.0]
    assert Drift(damping=1.0).forecast(np.array([9.0, 1.0]), 3).tolist() == [0.0, 0.0, 0.0]


def test_the_truth_ends_where_the_record_ends():
    known = Foreknown(truth=np.arange(5.0))
    assert known.forecast(np.arange(3.0), 12).tolist() == [3.0, 4.0]
