from __future__ import annotations

import numpy as np
import pytest

from sublet_lab.forecasting.score import DEFAULT, PERSISTENCE, ForecastError
from sublet_lab.forecasting.table import ErrorRow, readable_traces
from sublet_lab.studies.liveput.forecasts import _alike, _checks, forecast_checks


def row(trace, ours, still):
    """Errors one minute ahead, and so on."""
    errors = {
        name: ForecastError(per_step=np.array(each), mean=float(np.mean(each)), forecasts=9)
        for name, each in ((DEFAULT, ours), (PERSISTENCE, still))
    }
    return ErrorRow(trace=trace, horizon=len(ours), moments=9, errors=errors, left_out={})


def test_where_the_default_departs_from_persistence_it_is_held_to_be_better_and_elsewhere_said_to_be_the_same():
    rows = [
        row("same", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        row("better", [1.0, 1.5, 2.0], [1.0, 2.0, 3.0]),
        row("worse", [1.0, 2.5, 3.0], [1.0, 2.0, 3.0]),
    ]
    assert _alike(rows) == "on 1 of 3 traces skilled is persistence throughout"
    found = {check.name.rpartition(" ")[2]: check for check in _checks(rows) if "departs" in check.name}
    assert set(found) == {"better", "worse"}
    assert found["better"].ours == pytest.approx(4.5 / 6.0)
    assert (found["better"].ok, found["worse"].ok) == (True, False)
    less = {check.name.rpartition(" ")[2]: check for check in _checks(rows) if " less " in check.name}
    assert (less["same"].ours, less["better"].ours) == (0.0, 0.0)  # one minute ahead it is no other
    assert less["worse"].ours == pytest.approx(1.0 / 6.0)


@pytest.mark.long
def test_a_quick_run_has_a_check_and_a_row_for_every_bundled_trace():
    told = []
    checks, tables = forecast_checks(True, told.append)
    bundled = list(readable_traces(bundled_only=True))
    assert told == [f"forecasts of {name}" for name in bundled]
    assert [check.name.rpartition(" ")[2] for check in checks if " less " in check.name] == bundled
    assert all(check.ok for check in checks)
    assert [len(table.rows) for table in tables] == [len(bundled)] * 3
    for table in tables:
        assert {"persistence", "arima", "parcae", "markov", "drift", "skilled"} <= set(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)
