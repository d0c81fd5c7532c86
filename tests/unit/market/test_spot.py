from __future__ import annotations

import csv
import math
from itertools import takewhile

import pytest

from sublet import data
from sublet.errors import BadInput, InvalidValue, MissingData, UnknownName
from sublet.market.hazard import poisson_interval, trace_hazard
from sublet.market.spot import Change, inverted, read_trace
from sublet.market.traces import TRACES, check_polarity, load_trace

BUNDLED = [name for name, facts in TRACES.items() if facts.bundled]
NAMED = [pytest.param(name, marks=() if name in BUNDLED else pytest.mark.outside_data) for name in TRACES]


def load_or_skip(name):
    try:
        return load_trace(name)
    except MissingData:
        pytest.skip(f"{name} is not ours to ship and not there")


def trace_of(tmp_path, *rows, polarity="availability", **facts):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["t_s,zone,available", *rows]) + "\n")
    return read_trace(path, polarity=polarity, **facts)


TWO_ZONES = ("0,a,3", "0,b,1", "60,a,3", "90,b,0", "120,a,1", "400,b,2")


def test_a_value_holds_until_the_zones_next_row(tmp_path):
    trace = trace_of(tmp_path, *TWO_ZONES)
    assert [trace.value_at("a", t_s) for t_s in (-1, 0, 119.9, 120, 9_999)] == [0, 3, 3, 1, 1]
    assert trace.zones == ("a", "b")
    with pytest.raises(UnknownName, match="no zone is called 'c'"):
        trace.value_at("c", 0.0)


def test_events_are_the_state_and_then_the_changes_of_all_zones_in_order(tmp_path):
    trace = trace_of(tmp_path, *TWO_ZONES)
    assert list(trace.events(30.0, 400.0)) == [
        Change(30.0, "a", 3),
        Change(30.0, "b", 1),
        Change(90.0, "b", 0),
        Change(120.0, "a", 1),
    ]
    assert list(trace.events(30.0, 30.0)) == []


def test_past_its_end_a_trace_keeps_its_last_value_and_says_so(tmp_path):
    trace = trace_of(tmp_path, *TWO_ZONES)
    assert trace.span_s == 400.0
    assert [trace.ended(t_s) for t_s in (0, 399, 400)] == [False, False, True]
    assert trace.ended(200.0, "a")
    assert not trace.ended(200.0, "b")


def test_a_repeated_trace_never_ends(tmp_path):
    trace = trace_of(tmp_path, "0,a,1", "10,a,2", "20,a,0", span_s=30.0, repeat=True)
    assert not trace.ended(1e9)
    assert [trace.value_at("a", t_s) for t_s in (29, 30, 41, 50)] == [0, 1, 2, 0]
    changes = list(takewhile(lambda change: change.t_s <= 50, trace.events(25.0, math.inf)))
    assert changes == [Change(25.0, "a", 0), Change(30.0, "a", 1), Change(40.0, "a", 2), Change(50.0, "a", 0)]


def test_rows_in_a_rhythm_last_one_tick_more_and_changes_do_not(tmp_path):
    assert trace_of(tmp_path, "0,a,1", "60,a,1", "120,a,0").span_s == 180.0
    assert trace_of(tmp_path, "0,a,1", "60,a,2", "500,a,0").span_s == 500.0


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ((), "no row"),
        (("0,a,1",), "one row is no trace"),
        (("0,a,1", "0,b,1"), "one instant"),
        (("0,a,1", "10,a,-1"), "available is '-1'"),
        (("0,a,1", "10,a,1.0"), "available is '1.0'"),
        (("0,a,1", "10,a,nan"), "available is 'nan'"),
        (("0,a,1", "10,a,"), "available is ''"),
        (("0,a,1", "10,a,1_0"), "available is '1_0'"),
        (("0,a,1", "10,a,9999999999"), "available is '9999999999'"),
        (("0,a,1", "nan,a,2"), "t_s is 'nan'"),
        (("0,a,1", "inf,a,2"), "t_s is 'inf'"),
        (("0,a,1", ",a,2"), "t_s is ''"),
        (("-5,a,1", "10,a,2"), "t_s is '-5'"),
        (("0,a,1", "10,a,2", "10,a,3"), "t_s does not rise in zone a"),
        (("0,a,1", "10,,2"), "zone is ''"),
        (("0,a,1", "10,a"), "2 fields"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, rows, why):
    with pytest.raises(BadInput, match=why):
        trace_of(tmp_path, *rows)


def test_a_missing_column_is_named(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("t_s,zone,preempted\n0,a,1\n60,a,0\n")
    with pytest.raises(BadInput, match="line 1: missing columns: available"):
        read_trace(path, polarity="availability")


def test_what_is_said_about_a_trace_must_fit_its_rows(tmp_path):
    with pytest.raises(BadInput, match="line 2: available is 3, above the target of 2\n  next: "):
        trace_of(tmp_path, *TWO_ZONES, max_available=2)
    with pytest.raises(InvalidValue, match="holes"):
        trace_of(tmp_path, *TWO_ZONES, holes="fill")
    with pytest.raises(InvalidValue, match="span_s"):
        trace_of(tmp_path, *TWO_ZONES, span_s=100.0)


def test_who_reads_a_file_says_what_its_ones_mean(tmp_path):
    rows = ("0,a,1", "60,a,0", "120,a,0")
    assert trace_of(tmp_path, *rows, polarity="preempted").value_at("a", 0.0) == 0
    assert trace_of(tmp_path, *rows, polarity="availability").value_at("a", 0.0) == 1
    with pytest.raises(InvalidValue, match="polarity"):
        trace_of(tmp_path, *rows, polarity="up")


def test_counts_cannot_be_inverted(tmp_path):
    with pytest.raises(InvalidValue, match="counts up to 3"):
        trace_of(tmp_path, *TWO_ZONES, polarity="preempted")


@pytest.mark.parametrize("name", [name for name in BUNDLED if "skynomad" not in name])
def test_a_fleet_looks_like_availability(name):
    assert check_polarity(load_trace(name)).verdict == "consistent"


@pytest.mark.outside_data
def test_held_instances_look_right_one_way_and_suspicious_the_other():
    trace = load_or_skip("skypilot-v100-2023-04")
    assert check_polarity(trace).verdict == "consistent"
    report = check_polarity(trace, declared="preempted")
    assert report.verdict == "suspicious"
    assert any("start full" in sign for sign in report.evidence)
    assert report.trace.value_at(trace.zones[0], 0.0) == 1


def test_nothing_can_be_told_about_probes():
    assert check_polarity(load_trace("skynomad-h100")).verdict == "cannot tell"


@pytest.mark.outside_data
def test_nothing_can_be_told_about_probes_that_do_not_ship():
    trace = load_or_skip("skypilot-v100-2022")
    assert {check_polarity(trace).verdict, check_polarity(inverted(trace)).verdict} == {"cannot tell"}


def test_the_registry_says_what_the_index_says():
    with data.locate("spot/index.csv").open() as index:
        by_file = {"spot/" + row["file"]: row for row in csv.DictReader(index)}
    for name, facts in TRACES.items():
        if facts.file not in by_file:  # the index of the package lists what is bundled
            assert not facts.bundled
            continue
        row = by_file[facts.file]
        assert row["kind"].startswith(facts.kind), name
        assert (row["cloud"], row["gpu"], row["source"]) == (facts.cloud, facts.gpu, facts.source)
        assert row["instance_type"].startswith(facts.instance_type)
        assert float(row["span_s"]) == facts.span_s
        assert int(row["max_available"]) == facts.max_available
        assert row["gpus_per_instance"] == str(facts.gpus_per_instance or "")


@pytest.mark.parametrize("name", NAMED)
def test_every_named_trace_is_what_the_registry_says(name):
    trace = load_or_skip(name)
    assert trace.name == name
    assert max(int(steps.value.max()) for steps in trace.series.values()) == trace.max_available
    assert trace.licence
    assert max(trace.end_s.values()) == trace.span_s


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_traces_are_in_the_package_and_may_be(name):
    assert TRACES[name].licence in {"MIT", "Apache-2.0"}
    if not data.bundled(TRACES[name].file).exists():
        pytest.skip("the data files have not been put into the package")


def test_the_hours_of_parcae_are_hours_of_bamboo():
    bamboo = load_trace("bamboo-p3")
    for name, first_h in (("hadp", 5.5), ("hasp", 1.5), ("ladp", 8.0), ("lasp", 10.0)):
        first = round(first_h * 60)
        hour = load_trace(f"parcae-{name}").per_tick(60.0)
        assert hour.tolist() == bamboo.per_tick(60.0)[first : first + 60].tolist()


def test_a_wrong_trace_name_gets_help():
    with pytest.raises(UnknownName, match="did you mean bamboo-p3"):
        load_trace("bambo-p3")
    with pytest.raises(MissingData):
        load_trace("nowhere/trace.csv")
    with pytest.raises(InvalidValue, match="bamboo-p3 is known to state"):
        load_trace("bamboo-p3", polarity="preempted")


def test_losses_are_falls_times_their_size_over_the_hours_held(tmp_path):
    hazard = trace_hazard(trace_of(tmp_path, "0,a,4", "3600,a,2", "7200,a,3", "14400,a,0"))
    assert (hazard.pooled.losses, hazard.pooled.falls, hazard.pooled.launches) == (5, 2, 5)
    assert hazard.pooled.instance_h == 4 + 2 + 6
    assert hazard.pooled.per_h == pytest.approx(5 / 12)
    assert hazard.pooled.mean_run_h == pytest.approx(12 / 5)
    assert hazard.pooled.mean_available == pytest.approx(3.0)
    assert not hazard.observed


def test_a_zone_that_never_had_anything_has_no_rate(tmp_path):
    hazard = trace_hazard(trace_of(tmp_path, "0,a,0", "60,a,0"))
    assert hazard.pooled.per_h is None
    assert hazard.pooled.interval_per_h == (0.0, math.inf)


def test_zones_pool_by_their_hours(tmp_path):
    hazard = trace_hazard(trace_of(tmp_path, *TWO_ZONES))
    assert hazard.pooled.losses == sum(zone.losses for zone in hazard.zones.values()) == 3
    assert hazard.pooled.instance_h == pytest.approx(sum(zone.instance_h for zone in hazard.zones.values()))


def test_the_poisson_interval_has_its_textbook_values():
    assert poisson_interval(0, 1.0)[1] == pytest.approx(3.6889, abs=1e-4)
    assert poisson_interval(10, 2.0) == pytest.approx((2.3977, 9.1952), abs=1e-4)
    with pytest.raises(InvalidValue, match="confidence"):
        poisson_interval(1, 1.0, confidence=1.0)


@pytest.mark.parametrize(("name", "per_h"), [("bamboo-p3", 0.611), ("bamboo-gcp", 0.281), ("skynomad-h100", 0.504)])
def test_the_hazards_of_the_bundled_traces_are_known(name, per_h):
    hazard = trace_hazard(load_trace(name)).pooled
    assert hazard.per_h == pytest.approx(per_h, abs=5e-4)
    low, high = hazard.bulk_interval_per_h
    assert low < hazard.interval_per_h[0] < hazard.per_h < hazard.interval_per_h[1] < high


@pytest.mark.parametrize("rows", [("0,a,3", "60,a,3", "400,a,3"), ("0,a,0", "0,b,2", "400,b,2")])
def test_a_repeated_trace_in_which_nothing_changes_ends_after_its_state(tmp_path, rows):
    trace = trace_of(tmp_path, *rows, repeat=True)
    assert [(t_s, zone) for t_s, zone, _ in trace.events(30.0, math.inf)] == [(30.0, zone) for zone in trace.zones]


def test_a_zone_that_opens_late_changes_in_every_round(tmp_path):
    trace = trace_of(tmp_path, "0,a,3", "60,b,3", "400,a,3", span_s=400.0, repeat=True)
    changes = trace.events(0.0, math.inf)
    found = [next(changes) for _ in range(5)]
    assert found[2:] == [Change(60.0, "b", 3), Change(400.0, "b", 0), Change(460.0, "b", 3)]
