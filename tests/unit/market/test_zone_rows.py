"""Traces with holes, rows out of order or twice, and numbers that may be the wrong way round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sublet.errors import BadInput, MissingData
from sublet.market.spot import read_trace
from sublet.market.steps import Steps
from sublet.market.traces import TRACES, check_polarity, load_trace, presumed

READ = {"polarity": "availability"}


def file_of(tmp_path, rows, zone="z"):
    path = tmp_path / "trace.csv"
    path.write_text("t_s,zone,available\n" + "".join(f"{t_s},{zone},{value}\n" for t_s, value in rows))
    return path


def ticks(*values, start_s=0, tick_s=60):
    return [(start_s + tick_s * each, value) for each, value in enumerate(values)]


def readable():
    for name in TRACES:
        try:
            yield load_trace(name)
        except MissingData:
            continue


# ---------------------------------------------------------------------- holes


def test_a_hole_among_ticks_is_refused_with_its_line_and_length(tmp_path):
    rows = [*ticks(4, 4, 5, 5, 5, 6), *ticks(6, 6, 5, 5, 4, 4, start_s=3600)]
    with pytest.raises(BadInput, match="3300 s without a row in zone z, from 300 to 3600 s") as caught:
        read_trace(file_of(tmp_path, rows), **READ)
    assert caught.value.line == 8
    assert "usually 60 s apart" in caught.value.why
    assert "fill the rows in" in caught.value.hint


def test_a_hole_can_be_held_over_and_is_noted(tmp_path):
    rows = [*ticks(4, 4, 5, 5, 5, 6), *ticks(6, 6, 5, 5, 4, 4, start_s=3600)]
    trace = read_trace(file_of(tmp_path, rows), **READ, holes="hold")
    assert trace.value_at("z", 3000.0) == 6
    assert trace.notes == ("zone z: 1 hole of 3300 s; the number before goes on",)


def test_a_missed_tick_or_two_are_noted_and_no_more(tmp_path):
    rows = [row for row in ticks(*([7] * 60)) if row[0] not in {600, 1200, 1260}]
    (note,) = read_trace(file_of(tmp_path, rows), **READ).notes
    assert note == "zone z: missing ticks of 60 s: 3, two in a row at most; the number before goes on"


def test_polls_without_a_rhythm_have_a_hole_only_far_beyond_their_pace(tmp_path):
    t_s = np.cumsum([0, 60, 130, 90, 240, 70, 110, 200, 65, 90, 150, 60])
    calm = [(int(each), 9) for each in t_s]
    assert read_trace(file_of(tmp_path, calm), **READ).notes == ()
    with pytest.raises(BadInput, match="9000 s without a row"):
        read_trace(file_of(tmp_path, [*calm, (int(t_s[-1]) + 9000, 9)]), **READ)


def test_a_list_of_changes_has_no_holes(tmp_path):
    rows = [*ticks(4, 5, 4, 5, 4, 3, 2, 3, 4, 5, 6, 7, 8), (90_000, 9)]
    assert read_trace(file_of(tmp_path, rows), **READ).notes == ()


def test_the_hole_in_a_known_trace_is_known():
    assert load_trace("skynomad-h100").notes == ("each of 13 zones: 1 hole of 6600 s; the number before goes on",)
    assert {trace.name for trace in readable() if trace.notes} == {"skynomad-h100"}


# ---------------------------------------------------------------------- order


def test_overlapping_pollers_are_sorted_and_that_is_said(tmp_path):
    rows = [(0, 8), (60, 8), (180, 7), (120, 8), (240, 7), (300, 6), (270, 7), (360, 6)]
    trace = read_trace(file_of(tmp_path, rows), **READ)
    assert trace.notes == ("zone z: steps back of t_s: 2; the rows were sorted",)
    assert [trace.value_at("z", t_s) for t_s in (100, 130, 180, 290, 300)] == [8, 8, 7, 7, 6]


def test_two_records_in_one_file_are_not_mixed(tmp_path):
    day = ticks(*([8] * 30))
    with pytest.raises(BadInput, match="line 32: t_s falls from 1740 to 0 in zone z: two records") as caught:
        read_trace(file_of(tmp_path, [*day, *day]), **READ)
    assert "a zone of its own" in caught.value.hint


def test_a_row_that_is_there_twice_is_kept_once_and_two_that_disagree_are_refused(tmp_path):
    trace = read_trace(file_of(tmp_path, [(0, 3), (60, 4), (60, 4), (120, 5)]), **READ)
    assert trace.notes == ("zone z: rows that repeat another: 1; they were dropped",)
    with pytest.raises(BadInput, match=r"line 4: t_s is 60 as in line 3.*available is 4 in one and 2 in the other"):
        read_trace(file_of(tmp_path, [(0, 3), (60, 4), (60, 2), (120, 5)]), **READ)


@pytest.mark.parametrize(("t_s", "value"), [("60", "-3"), ("60", "nan"), ("60", ""), ("nan", "3"), ("60", "2.5")])
def test_a_number_that_cannot_be_is_refused_with_line_value_and_next_step(tmp_path, t_s, value):
    with pytest.raises(BadInput) as caught:
        read_trace(file_of(tmp_path, [(0, 3), (t_s, value), (120, 5)]), **READ)
    assert caught.value.line == 3
    assert repr(t_s if t_s == "nan" else value) in caught.value.why
    assert "correct the row" in caught.value.hint


def test_a_time_beyond_a_year_is_refused_with_the_line_and_what_it_counts_from(tmp_path):
    """What replays a record goes minute by minute: of a date since 1970 it would hear nothing for 54 years."""
    read_trace(file_of(tmp_path, [(0, 3), (366 * 86400, 5)]), **READ)
    for t_s, shown in (("1e12", "1000000000000"), ("1700000000", "1700000000"), ("1e300", "1e+300")):
        with pytest.raises(BadInput) as caught:
            read_trace(file_of(tmp_path, [(0, 3), (60, 4), (t_s, 5)]), **READ)
        assert caught.value.line == 4
        assert f"t_s is {shown}, above 31,622,400" in caught.value.why
        assert "subtract the first" in caught.value.hint


# ---------------------------------------------------------------------- which way round


def unknown(trace, *, turned=False):
    """As somebody would find it in a file: without a word on its kind or target."""
    most = trace.max_available
    series = {
        zone: Steps(t_s=steps.t_s, value=most - steps.value) if turned else steps
        for zone, steps in trace.series.items()
    }
    seen = max(1, *(int(steps.value.max()) for steps in series.values()))
    return replace(trace, kind="", series=series, max_available=seen)


def test_no_real_trace_is_taken_for_its_opposite():
    for trace in readable():
        assert check_polarity(unknown(trace)).verdict != "suspicious", trace.name


def test_the_sign_finds_plain_cases_and_misses_others():
    found = {t.name for t in readable() if check_polarity(unknown(t, turned=True)).verdict == "suspicious"}
    assert found - {"skypilot-v100-2022"} == {"bamboo-p3", "bamboo-gcp", "parcae-hadp", "parcae-hasp"}
    assert check_polarity(unknown(load_trace("parcae-lasp"), turned=True)).verdict == "consistent"  # misled, and known


def test_a_file_of_0_and_1_that_is_mostly_1_is_believed_and_any_other_must_be_declared(tmp_path):
    mostly, hardly, even = ([1] * 9 + [0], [0] * 9 + [1], [1, 0] * 5)
    assert load_trace(file_of(tmp_path, ticks(*mostly)), polarity=None).value_at("z", 0.0) == 1
    for values in (hardly, even):
        path = file_of(tmp_path, ticks(*values))
        with pytest.raises(BadInput, match="it is not stated whether a 1 means") as caught:
            load_trace(path, polarity=None)
        assert str(path) in str(caught.value)
        assert "--polarity preempted" in caught.value.hint
        assert load_trace(path, polarity="availability").value_at("z", 0.0) == values[0]
        assert load_trace(path, polarity="preempted").value_at("z", 0.0) == 1 - values[0]


def test_counts_that_rest_at_0_must_be_declared_and_cannot_be_turned_round(tmp_path):
    path = file_of(tmp_path, ticks(*([0] * 30), 4, 2, 0, 0, 0, 6, 5, 0, 0))
    with pytest.raises(BadInput, match=r"against: .* of the time at 0") as caught:
        load_trace(path, polarity=None)
    assert "subtract the numbers from the target" in caught.value.hint
    assert load_trace(path, polarity="availability").max_available == 6


def test_a_trace_with_a_known_name_needs_no_declaration():
    for name in ("bamboo-p3", "skynomad-h100"):
        assert load_trace(name, polarity=None).name == name
    assert presumed(load_trace("bamboo-p3")).name == "bamboo-p3"
