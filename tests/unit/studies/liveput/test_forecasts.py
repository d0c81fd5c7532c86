from __future__ import annotations

from sublet.market.forecast.table import readable_traces
from sublet.studies.liveput.forecasts import forecast_checks
from tests.rigs.sizes import only_in_full


@only_in_full
def test_a_quick_run_has_a_check_and_a_row_for_every_bundled_trace():
    told = []
    checks, tables = forecast_checks(True, told.append)
    bundled = list(readable_traces(bundled_only=True))
    assert told == [f"forecasts of {name}" for name in bundled]
    assert [check.name.rpartition(" ")[2] for check in checks] == bundled
    assert all(check.ok for check in checks)
    assert [len(table.rows) for table in tables] == [len(bundled)] * 3
    for table in tables:
        assert {"persistence", "arima", "parcae", "markov", "drift", "skilled"} <= set(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)
