"""How fast a live job that is cut is in every grid, and what changes cost it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.perf.live_grids import FIRST_COSTS, EvenLayers, LiveGrids, depths_of, pipeline_gain, unit_gain
from sublet.perf.migration import Layers, LinearCosts, Pause
from tests.rigs.pipelines import pipeline_s

KNOWN = LiveGrids(most_gpus=8, depths=(1, 2, 4), guess=2.0)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_the_gain_is_that_of_the_schedule_itself(copies, parts, each):
    atoms = copies * each
    alone_s = pipeline_s([1.0], [2.0], atoms)
    taken_s = pipeline_s([1.0 / parts] * parts, [2.0 / parts] * parts, each)
    assert pipeline_gain(copies, parts, atoms) == pytest.approx(alone_s / taken_s)


def test_before_anything_is_measured_all_lies_on_the_curve_from_the_guess():
    rates = KNOWN.rates()
    assert rates[1, 1] == 2.0
    assert rates[4, 1] == 8.0
    assert rates[1, 4] == pytest.approx(2.0 * 4 * 32 / 35)


def test_what_was_measured_stands_and_moves_the_rest():
    rates = replace(KNOWN, measured=(((2, 2), 5.0),)).rates()
    assert rates[2, 2] == 5.0
    assert rates[4, 2] == pytest.approx(5.0 * pipeline_gain(4, 2, 32) / pipeline_gain(2, 2, 32))


def test_only_grids_that_may_be_are_there():
    assert set(replace(KNOWN, most_gpus=4, sizes=(2, 4)).rates()) == {(2, 1), (4, 1), (1, 2), (2, 2), (1, 4)}
    assert replace(KNOWN, depths=()).profile() is None


def test_depths_are_the_one_that_was_asked_for_or_all_with_a_block_and_a_worker_for_each_part():
    assert depths_of(3, 8, (), 8) == (3,)
    assert depths_of(9, 8, (), 8) == ()
    assert depths_of(0, 3, (), 8) == (1, 2, 3)
    assert depths_of(0, 8, (5, 5), 8) == (1, 2)
    assert depths_of(0, 8, (5,) * 5, 8, 3) == (3, 4, 5)
    assert depths_of(0, 2, (5,) * 5, 8, 3) == (2,), "all that can be tried"
    assert depths_of(2, 8, (5,) * 5, 8, 3) == (2,), "its owner has said so"


def test_equal_knowledge_is_the_same_profile():
    assert replace(KNOWN).profile() is KNOWN.profile()


def test_five_pauses_of_several_kinds_take_the_place_of_the_first_constants():
    blocks = (1200,) * 8
    true = LinearCosts(
        layers=Layers((100.0,) * 8), join_s=2.0, process_s=0.5, member_s=0.1, layer_s=0.0, bytes_per_s=1e4
    )
    pauses = tuple(
        Pause(wide=w, deep=d, grow=g, params=p, seconds=true.restart_s(w, d, grow=g) + true.transfer_s(p))
        for w, d, g, p in [(1, 2, True, 100.0), (2, 2, False, 200.0), (1, 4, True, 50.0), (2, 4, False, 400.0)]
    )
    regrouped = Pause(wide=2, deep=4, grow=False, params=0.0, seconds=true.regroup_s(2, 4), regrouped=True)
    few = replace(KNOWN, blocks=blocks, pauses=pauses, speedup=60.0)
    assert few.costs().join_s == pytest.approx(few.costs().process_s), "as the first constants have it"
    enough = replace(few, pauses=(*pauses, regrouped)).costs()
    assert enough.regroup_s(2, 4) == pytest.approx(60.0 * true.regroup_s(2, 4), rel=1e-6)
    assert enough.transfer_s(100.0) == pytest.approx(60.0 * true.transfer_s(100.0), rel=1e-6)


def test_one_change_that_took_three_times_what_was_planned_makes_all_later_ones_three_times_as_dear():
    first = LinearCosts(layers=EvenLayers((100.0,) * 8), **FIRST_COSTS)
    took_s = 3.0 * (first.restart_s(2, 2, grow=True) + first.transfer_s(1e6))
    known = replace(KNOWN, pauses=(Pause(wide=2, deep=2, grow=True, params=1e6, seconds=took_s),))
    assert KNOWN.costs().regroup_s(2, 4) == pytest.approx(first.regroup_s(2, 4))
    assert known.costs().regroup_s(2, 4) == pytest.approx(3.0 * first.regroup_s(2, 4))
    assert known.costs().transfer_s(5e6) == pytest.approx(3.0 * first.transfer_s(5e6))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 8))
def test_units_that_are_alike_gain_what_the_curve_says(copies, parts, each):
    blocks = (0.0, *[0.25] * (2 * parts), 0.0)
    assert unit_gain(copies, parts, copies * each, blocks) == pytest.approx(pipeline_gain(copies, parts, copies * each))


@given(st.lists(st.floats(0.1, 9.0), min_size=3, max_size=8), st.integers(1, 4), st.data())
def test_a_head_that_takes_long_is_what_a_deep_pipeline_waits_for(units, each, data):
    """The schedule itself takes no longer than the slowest part in all turns, and no less than its own work."""
    parts = data.draw(st.integers(1, len(units) - 2))
    at = [number * (len(units) - 2) // parts for number in range(parts + 1)]
    taken = [sum(units[1 + at[part] : 1 + at[part + 1]]) for part in range(parts)]
    taken[0] += units[0]
    taken[-1] += units[-1]
    found_s = sum(units) * each / unit_gain(1, parts, each, units)
    scheduled_s = pipeline_s([part / 3 for part in taken], [2 * part / 3 for part in taken], each)
    assert max(taken) * each * (1 - 1e-9) <= scheduled_s <= found_s * (1 + 1e-9)


def test_what_was_timed_of_units_tells_grids_that_were_never_tried():
    units = (1.0, *[1.0] * 4, 11.0)  # the head takes as long as eleven blocks
    known = replace(KNOWN, blocks=(12,) * 4, units=units, measured=(((1, 1), 2.0),))
    assert known.rates()[2, 1] == pytest.approx(4.0)
    assert known.rates()[1, 2] == pytest.approx(2.0 * 32 * 16 / (13 * 33)), "it waits for the head and two blocks"
    assert known.rates()[1, 4] == pytest.approx(2.0 * 32 * 16 / (12 * 35)), "depth brings next to nothing more"
