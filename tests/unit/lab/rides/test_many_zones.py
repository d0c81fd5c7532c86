from __future__ import annotations

import pytest

from sublet.errors import InvalidValue
from sublet.market.spot import read_trace
from sublet_lab.rides.many_zones import have_of
from sublet_lab.rides.record import record_of
from sublet_lab.rides.zones import region_of


def trace(tmp_path, name, rows):
    path = tmp_path / f"{name}.csv"
    path.write_text("t_s,zone,available\n" + rows, encoding="utf-8")
    return read_trace(path, polarity="availability")


def test_zones_of_all_traces_are_there_for_as_long_as_all_were_recorded(tmp_path):
    one = trace(tmp_path, "one", "0,a,4\n700,a,2\n")
    two = trace(tmp_path, "two", "0,b,1\n300,b,3\n300,c,9\n1000,b,3\n1000,c,9\n")
    zones, have = have_of([one, two], step_s=100.0)
    assert zones == ["a", "b", "c"]
    assert have[0] == (4, 1, 0)
    assert have[3] == (4, 3, 9)
    assert len(have) >= 7
    with pytest.raises(InvalidValue, match="each may be there once"):
        have_of([one, one], step_s=100.0)
    with pytest.raises(InvalidValue, match="at least one tick"):
        have_of([one], step_s=1e6)


def test_changes_between_ticks_are_kept(tmp_path):
    record = record_of(trace(tmp_path, "odd", "0,a,4\n90,a,2\n120,a,3\n200,a,9\n400,a,9\n"), most=8)
    assert record.capacity[:4] == (4, 4, 3, 3)
    assert record.between[0] == (90.0, 2)
    assert (200.0, 8) in record.between


def test_a_region_is_a_zone_without_its_letter():
    assert [region_of(zone) for zone in ("us-west-2a", "us-west-2c", "europe-west1-c")] == [
        "us-west-2",
        "us-west-2",
        "europe-west1",
    ]
