"""What measures a start after a million events is run with a few: a benchmark that does not run measures nothing."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.log import measure
from sublet.runtime.controller.paces import PACES


def test_a_store_is_made_cut_and_started_from_and_no_event_is_lost():
    found = measure(900, replace(PACES, events_a_file=200, events_a_snapshot=100))
    assert found.events >= 900
    assert found.tail < found.events
    assert found.archive_mb > 0.0
    assert found.jobs > 0
    assert found.spent_usd > 0.0
