"""Every registered forecaster passes the suite for forecasters."""

from __future__ import annotations

from sublet import plugins
from sublet_lab.forecasting.conformance import ForecasterSuite
from sublet_lab.forecasting.score import DEFAULT, FORECASTERS, PERSISTENCE

NAMES = plugins.names(FORECASTERS)
EMPTY_STAYS = {"parcae": 8.0}  # as published: never less than a quarter of what was asked for

for name in NAMES:
    title = f"Test_{name}"
    facts = {"registered_as": name, "empty_stays": EMPTY_STAYS.get(name, 0.0)}
    globals()[title] = type(title, (ForecasterSuite,), facts)


def test_there_are_the_forecasters_that_we_speak_of():
    assert {"persistence", "drift", "arima", "parcae", "markov", "skilled"} <= set(NAMES)
    assert {PERSISTENCE, DEFAULT} <= set(NAMES)
