"""The study of regions: sets that share nothing, a best in hindsight that nobody beats, and bills that add up."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from sublet.domain.units import SECONDS_PER_H
from sublet.policies.regions.policy import Regions
from sublet_lab.studies.regions import study
from sublet_lab.studies.regions.ride import Outcome, best_usd, ride
from sublet_lab.studies.regions.rivals import GreedySpot, OnDemand
from sublet_lab.studies.regions.scene import gcp_h100, region_of, v100_2023
from sublet_lab.studies.regions.skynomad import SkyNomad, VirtualInstance
from sublet_lab.studies.regions.study import POLICIES, SETS, SHIPPED, STUDY, Row, rows_of, sets_here, windows_of


@pytest.fixture(scope="module")
def window():
    """The record that is shipped: eight hours of work in ten, at a time when zones come and go."""
    return windows_of(SHIPPED, work_h=8.0, ratio=1.25, every_h=60.0)[1]


def test_no_hour_of_a_record_is_in_two_sets():
    spans = sorted((part.scene.__name__, part.from_h, part.to_h) for part in SETS)
    for (scene, _, to_h), (next_scene, from_h, _) in pairwise(spans):
        assert scene != next_scene or to_h <= from_h
    assert {part.scene.__name__ for part in SETS if not part.is_reported} == {"v100_2023"}


def test_windows_lie_within_their_set_on_ticks_of_the_record():
    found = windows_of(SHIPPED, work_h=24.0, ratio=1.5, every_h=12.0)
    assert len(found) == 18
    for each in found:
        assert each.begins_s % 600.0 == 0.0
        assert each.begins_s + each.within_s <= SHIPPED.to_h * SECONDS_PER_H


def test_nobody_is_cheaper_than_the_best_in_hindsight_and_all_are_in_time(window):
    best = best_usd(window)
    for name, make in POLICIES.items():
        found = ride(window, make())
        assert found.in_time, name
        assert found.usd >= best * (1 - 1e-9), name


def test_on_demand_pays_for_its_work_and_one_pause(window):
    found = ride(window, OnDemand())
    assert found.usd == pytest.approx(82.525434 * (8.0 + 0.1), rel=1e-6)
    assert (found.starts, found.egress_usd, found.probes_usd) == (1, 0.0, 0.0)


def test_probes_that_come_are_paid_for_a_minute_each(window):
    """Every two hours a minute of all zones that have a node, but for the one that is held."""
    scene = gcp_h100()
    found = ride(window, SkyNomad())
    rents = {zone: scene.spot[zone].value[0] / 1e6 for zone in scene.zones}
    assert 0.0 < found.probes_usd <= 6 * sum(rents.values()) / 60.0
    assert ride(window, SkyNomad(probes=False)).probes_usd == 0.0
    assert ride(window, Regions()).probes_usd == 0.0  # what it is given, it uses


def test_moves_between_regions_are_paid(window):
    found = ride(window, GreedySpot())
    regions = [region_of(place.split()[0]) for place in found.places if place.endswith("spot")]
    assert found.egress_usd >= sum(was != now for was, now in pairwise(regions))


def test_a_job_that_may_only_run_in_one_zone_stays_there(window):
    found = ride(window, Regions(), pools=("us-central1-a spot", "us-central1 on demand"))
    assert {place.split()[0] for place in found.places} <= {"us-central1-a", "us-central1"}


def test_a_quick_run_ends_in_checks_that_can_fail():
    found = STUDY.run(True, lambda _: None)
    assert {check.name for check in found.checks if "deadlines" in check.name} == {"h100: deadlines kept"}
    assert all(math.isfinite(check.ours) for check in found.checks)
    assert len(found.tables) == 1
    assert [row[0] for row in found.tables[0].rows] == list(POLICIES)


def test_where_a_record_is_not_here_the_sets_of_the_other_are_run_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("SUBLET_DATA", str(tmp_path))
    v100_2023.cache_clear()
    here, notes = sets_here()
    assert here == [SHIPPED]
    assert ["'tuning'" in notes[0], "'validation'" in notes[1], "'v100'" in notes[2]] == [True] * 3
    assert all("skypilot_availability_1-node_aws-02-15-2023" in note and "'sublet data'" in note for note in notes)


def test_a_virtual_instance_lives_from_the_first_look_that_finds_it_to_the_first_that_does_not():
    seen = VirtualInstance()
    assert seen.expected_h(0.0, 10.0) == 10.0  # nothing speaks against it
    for hour, there in ((0, True), (2, True), (4, False), (6, True)):
        seen.look(there=there, now_s=hour * SECONDS_PER_H)
    assert seen.lives_h == [4.0]
    # one ended after 4 h, and one lives: at 4 h half of them end, by Nelson and Aalen exp(-1 / 2) live on
    assert seen.expected_h(6 * SECONDS_PER_H, 10.0) == pytest.approx(4.0 + 6.0 * math.exp(-0.5 * 2.0))
    assert seen.expected_h(11 * SECONDS_PER_H, 10.0) == 10.0  # older than any that ended


@pytest.mark.parametrize(
    ("windows", "side_by_side", "half_width"),
    [
        (3, 9.0, 4.302653 / math.sqrt(3)),  # fewer windows than would fit
        (9, 3.0, 4.302653 * math.sqrt(6 / 8) / math.sqrt(3)),  # of nine that overlap three count
        (9, 3.9, 4.302653 * math.sqrt(6 / 8) / math.sqrt(3)),  # whole ones
        (9, 1.6, math.nan),
        (1, 9.0, math.nan),
    ],
)
def test_the_interval_is_students_with_as_many_windows_as_fit_side_by_side(windows, side_by_side, half_width):
    """0, 1 and 2 over and over: of three the deviation is 1, of nine the square root of 6 / 8; t of two is 4.303."""
    over_best = tuple(float(at % 3) for at in range(windows))
    row = Row(policy="", over_best=over_best, outcomes=(), best_usd=(), side_by_side=side_by_side)
    assert row.half_width == pytest.approx(half_width, rel=1e-6, nan_ok=True)


def test_so_many_windows_fit_into_a_set_as_it_has_hours():
    windows = windows_of(SHIPPED, work_h=4.0, ratio=1.5, every_h=60.0)
    (row,) = rows_of(windows, SHIPPED, {"on demand": OnDemand})
    assert len(row.over_best) == 4
    assert row.side_by_side == pytest.approx(241.0 / 6.0)


def row(policy, *usd, side_by_side=9.0):
    outcomes = tuple(
        Outcome(usd=each, in_time=True, starts=1, egress_usd=0.0, probes_usd=0.0, places=()) for each in usd
    )
    return Row(policy=policy, over_best=usd, outcomes=outcomes, best_usd=(1.0,) * len(usd), side_by_side=side_by_side)


def test_what_a_rival_costs_over_ours_is_a_mean_over_windows_with_its_interval():
    """1, 2 and 3 times as much: the deviation is 1, and t of two degrees of freedom is 4.303."""
    ours, theirs = row("regions", 1.0, 2.0, 1.0), row("other", 1.0, 4.0, 3.0)
    assert theirs.over(ours) == pytest.approx((2.0, 4.302653 / math.sqrt(3)), rel=1e-6)


def test_a_check_of_a_rival_has_the_mean_over_jobs_and_the_mean_of_their_intervals():
    jobs = {
        ("h100", work_h, 1.5): [row(name, *usd) for name, usd in (("regions", (1.0, 1.0, 1.0)), *others)]
        for work_h, others in (
            (24.0, [(name, (1.0, 2.0, 3.0)) for name in POLICIES if name != "regions"]),
            (100.0, [(name, (4.0, 4.0, 4.0)) for name in POLICIES if name != "regions"]),
        )
    }
    found = {check.name: check for check in study._checks(SHIPPED, jobs)}
    assert found["h100: greedy spot / regions"].ours == pytest.approx(3.0)
    assert found["h100: greedy spot / regions"].off == pytest.approx(4.302653 / math.sqrt(3) / 2.0, rel=1e-6)
    assert found["h100: cost / best"].off == 0.0
