"""ARIMA as statsmodels fits it, and our own fit beside it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sublet.errors import MissingExtra
from sublet.market.forecast import Persistence
from sublet.market.traces import TRACES, load_trace
from sublet_lab.forecasting import arima as forecast_arima
from sublet_lab.forecasting.arima import Arima, Autoregression, ar1_ahead
from sublet_lab.forecasting.score import forecast_error

BUNDLED = [name for name, facts in TRACES.items() if facts.bundled]
MOMENTS = 12  # of each trace


@pytest.mark.parametrize("window", [12, 60])
@pytest.mark.parametrize("name", BUNDLED)
def test_our_own_fit_and_that_of_statsmodels_forecast_the_same(name, window):
    trace = load_trace(name).per_tick(60.0).astype(float)
    theirs, ours = Arima(window=window), Autoregression(window=window, changes=True)
    fitted = 0
    for now in np.linspace(4, len(trace), MOMENTS).astype(int):
        if len(trace[:now]) > 6:  # of fewer points the likelihood has no one peak
            assert ours.forecast(trace[:now], 12) == pytest.approx(theirs.forecast(trace[:now], 12), abs=0.05)
            fitted += np.ptp(trace[:now][-window:]) > 0
    assert fitted > 0


def test_the_autoregression_finds_its_coefficient():
    rng, changes = np.random.default_rng(1), [0.0]
    for _ in range(4_000):
        changes.append(0.5 + 0.6 * (changes[-1] - 0.5) + rng.normal())
    ahead = ar1_ahead(np.array(changes), 200)
    assert ahead[-1] == pytest.approx(0.5, abs=0.1)
    assert (ahead[0] - ahead[-1]) / (changes[-1] - ahead[-1]) == pytest.approx(0.6, abs=0.05)


def test_a_steady_rise_goes_on_up_to_the_bound():
    rise = np.cumsum([1.0, 2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0])
    assert Arima().forecast(rise, 4)[-1] > rise[-1] + 3
    assert Arima(most=14).forecast(rise, 4).tolist() == [14.0] * 4


def test_arima_errs_more_than_persistence_on_an_hour_of_the_p3_trace():
    hour = load_trace("parcae-hadp")
    assert forecast_error(hour, Arima(most=32)).mean > forecast_error(hour, Persistence()).mean


def test_without_statsmodels_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.arima.model", None)
    forecast_arima._statsmodels.cache_clear()
    try:
        with pytest.raises(MissingExtra, match=r"pip install './lab\[forecast\]'"):
            Arima().forecast(np.array([1.0, 2.0, 4.0, 3.0]), 2)
        assert Arima().forecast(np.array([4.0]), 2).tolist() == [4.0, 4.0]
    finally:
        forecast_arima._statsmodels.cache_clear()
