"""How long was nobody there? By the clock that nobody can set."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.controller.gauges import Gauges
from sublet.runtime.controller.timekeeping import Mark, clock_from, mark, time_away_s
from sublet.runtime.store import Store

LAST = Mark(cloud_s=1000.0, unix_s=1e9, boot="here", on_s=500.0)


@pytest.mark.parametrize("jump_s", [-1e6, 0.0, 40 * 86_400.0])
def test_a_wall_clock_that_was_set_is_not_asked_while_the_machine_stays_on(jump_s):
    today = replace(LAST, unix_s=LAST.unix_s + 20.0 + jump_s, on_s=520.0)
    assert time_away_s(LAST, today) == 20.0


def test_after_the_machine_was_restarted_the_wall_clock_is_asked_and_never_goes_back():
    assert time_away_s(LAST, Mark(cloud_s=0.0, unix_s=LAST.unix_s + 90.0, boot="anew", on_s=3.0)) == 90.0
    assert time_away_s(LAST, Mark(cloud_s=0.0, unix_s=LAST.unix_s - 90.0, boot="anew", on_s=3.0)) == 0.0


def test_cloud_time_goes_on_where_it_was_whatever_the_wall_clock_says(tmp_path, monkeypatch):
    store = Store(tmp_path / "log.sqlite")
    assert clock_from(store, 60.0).now_s() < 60.0
    mark(store, Clock(speedup=60.0, began_s=7200.0))
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert 7200.0 <= clock_from(store, 60.0).now_s() < 7200.0 + 600.0
    store.close()


def test_a_directory_without_marks_goes_on_from_its_last_event(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    store.put("epoch", repr(time.time() - 100.0))
    store.append(3000.0, json.dumps({"event": {}, "actions": []}))  # after 50 s of wall time
    assert 6000.0 <= clock_from(store, 60.0).now_s() < 6600.0
    store.close()


def test_a_clock_that_is_set_while_a_controller_runs_changes_nothing(monkeypatch):
    gauges, clock = Gauges(), Clock(speedup=60.0)
    gauges.reconciled(0.1)
    before_s = clock.now_s()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert clock.now_s() - before_s < 600.0
    assert gauges.reconciled_ago_s < 10.0  # it is ready as it was
