"""How long was nobody there? By the clock that nobody can set."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.controller.money.timekeeping import (
    MARK_EVERY_S,
    Mark,
    clock_from,
    least_away_s,
    mark,
    passed_s,
    time_away_s,
)
from sublet.runtime.controller.watch.alarms import Gauges
from sublet.runtime.store import MetaKey, Store

LAST = Mark(cloud_s=1000.0, unix_s=1e9, boot="here", on_s=500.0)


@pytest.mark.parametrize("jump_s", [-1e6, 0.0, 40 * 86_400.0])
def test_a_wall_clock_that_was_set_is_not_asked_while_the_machine_stays_on(jump_s):
    today = replace(LAST, unix_s=LAST.unix_s + 20.0 + jump_s, on_s=520.0)
    assert time_away_s(LAST, today) == 20.0


def test_after_the_machine_was_restarted_the_wall_clock_is_asked_and_never_goes_back():
    assert time_away_s(LAST, Mark(cloud_s=0.0, unix_s=LAST.unix_s + 90.0, boot="anew", on_s=3.0)) == 90.0
    assert time_away_s(LAST, Mark(cloud_s=0.0, unix_s=LAST.unix_s - 90.0, boot="anew", on_s=3.0)) == 0.0


def test_after_a_boot_no_less_has_passed_than_the_machine_is_on_and_a_mark_may_be_old():
    today = Mark(cloud_s=0.0, unix_s=LAST.unix_s - 90.0, boot="anew", on_s=3.0)
    assert least_away_s(LAST, today) == MARK_EVERY_S + 3.0
    assert least_away_s(LAST, replace(today, boot="here", on_s=503.0)) == 0.0  # its own clock tells
    assert least_away_s(replace(LAST, boot=""), today) == 0.0  # perhaps the same one, which has been on for a year


def test_a_clock_begins_no_earlier_after_a_boot_than_the_last_event_and_a_mark_that_was_due(tmp_path):
    store = Store(tmp_path / "log.sqlite")
    wall = WallOfAnotherBoot()
    store.put(MetaKey.MARK, json.dumps(asdict(replace(LAST, unix_s=wall.unix() + 500.0))))
    store.append(1004.0, json.dumps({"event": {}, "actions": []}))
    clock = clock_from(store, 2.0, wall)
    assert clock.now_s() == clock.doubted_s == 1004.0 + (MARK_EVERY_S + 3.0) * 2.0
    assert not clock.certain
    mark(store, clock)
    later = clock_from(store, 2.0, wall)  # of the same boot: its own time is measured, that of before stays in doubt
    assert later.certain
    assert later.doubted_s == clock.doubted_s
    store.close()


class WallOfAnotherBoot:
    def monotonic(self):
        return 0.0

    def unix(self):
        return 1e9

    def since_boot(self):
        return "anew", 3.0


def test_cloud_time_goes_on_where_it_was_whatever_the_wall_clock_says(tmp_path, monkeypatch):
    store = Store(tmp_path / "log.sqlite")
    assert clock_from(store, 60.0).now_s() < 600.0
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


def test_what_has_passed_for_certain_is_known_without_the_clock_of_the_day(tmp_path):
    store, wall = Store(tmp_path / "log.sqlite"), WallOfAnotherBoot()
    boot, on_s = wall.since_boot()
    assert passed_s(store, wall) == 0.0  # nobody was here before
    for last, found in (
        (replace(LAST, boot=boot, on_s=on_s - 7.0), 7.0),
        (LAST, on_s),
        (replace(LAST, boot=""), 0.0),  # perhaps the same boot, which has been on for a year
    ):
        store.put(MetaKey.MARK, json.dumps(asdict(last)))
        assert passed_s(store, wall) == pytest.approx(found)
