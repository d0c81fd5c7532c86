from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.market.forecast import Persistence
from sublet.market.traces import load_trace
from sublet_lab.forecasting.score import forecast_error


def test_persistence_on_the_p3_trace_errs_as_measured_elsewhere():
    error = forecast_error(load_trace("bamboo-p3"), Persistence())
    assert error.mean == pytest.approx(2.31, abs=0.01)
    assert error.per_step[-1] == pytest.approx(3.64, abs=0.01)
    assert error.per_step[0] == pytest.approx(0.473, abs=0.001)


def test_an_oracle_does_not_err():
    trace = load_trace("parcae-hadp")
    truth = trace.per_tick(60.0).astype(float)

    class Oracle:
        def forecast(self, history, steps):
            return truth[len(history) : len(history) + steps]

    assert forecast_error(trace, Oracle()).mean == 0.0


def test_a_forecast_that_is_no_number_is_refused():
    class Broken:
        def forecast(self, history, steps):
            return np.full(steps, np.nan)

    with pytest.raises(InvalidValue, match="12 finite numbers"):
        forecast_error(load_trace("parcae-hadp"), Broken())


def test_a_trace_that_is_too_short_to_judge_says_so():
    with pytest.raises(InvalidValue, match="at most 59 together"):
        forecast_error(load_trace("parcae-hadp"), Persistence(), horizon=60)
