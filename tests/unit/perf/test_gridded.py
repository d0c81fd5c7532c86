"""A job that knows grids: its speed in a shape, and what its changes cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.job import Change
from sublet.domain.shape import Grid, Shape
from sublet.perf.gridded import Gridded, LivePauses, StoragePauses, config_of
from sublet.perf.grids import SUSPENDED, spot_job
from sublet.perf.migration import Layers, LinearCosts

COSTS = LinearCosts(layers=Layers((1e8,) * 13), join_s=5.0, process_s=0.5, member_s=0.2, layer_s=0.3, bytes_per_s=1e9)
RATES = {(wide, deep): 10.0 * wide**0.9 * deep**0.8 for deep in (2, 3, 4) for wide in range(1, 12 // deep + 1)}
PROFILE = spot_job("toy", RATES, COSTS)


def p(gpus, *grid):
    return Shape("p", gpus, grid=Grid(*grid) if grid else None)


def test_a_speed_is_that_of_the_grid_and_spares_add_nothing():
    speed = Gridded(PROFILE)
    assert speed.bound_to(p(9, 2, 4)).rate("V100", (9,), 0.0) == RATES[2, 4]
    assert speed.bound_to(p(9, 2, 4)) is speed.bound_to(p(8, 2, 4))  # bound once
    assert speed.bound_to(p(9, 2, 4)).rate("V100", (7,), 0.0) == 0.0  # it does not fit
    assert speed.bound_to(p(5, 1, 5)).rate("V100", (5,), 0.0) == 0.0  # nobody measured it
    assert speed.bound_to(p(9)) is speed
    assert speed.rate("V100", (9,), 0.0) == max(rate for (wide, deep), rate in RATES.items() if wide * deep <= 9)


def test_a_shape_that_does_not_say_runs_in_the_fastest_grid():
    assert config_of(PROFILE, p(9)) == PROFILE.fastest(9)
    assert config_of(PROFILE, p(5, 1, 5)) == SUSPENDED
    assert Gridded(PROFILE).grid(SUSPENDED) is None


def test_live_pauses_are_the_expectation_over_who_is_lost():
    pauses = LivePauses(PROFILE)
    was, now = PROFILE.at[2, 4], PROFILE.at[1, 4]
    lost = pauses.pause_s(Change(was=p(9, 2, 4), now=p(7, 1, 4), lost=2))
    assert lost == PROFILE.pauses_s(9, 7)[was, now] > 0.0
    start = pauses.pause_s(Change(was=None, now=p(9, 2, 4)))
    assert start == PROFILE.pauses_s(0, 9)[SUSPENDED, was] > 0.0


def test_with_a_whole_copy_on_demand_a_loss_is_of_the_others_and_nothing_is_restored_from_storage():
    pauses = LivePauses(PROFILE)
    was = replace(p(8, 2, 4), steady=4)
    regroup = float(PROFILE.moves.regroup_C[PROFILE.at[1, 4]])
    for lost in (1, 3, 4):
        assert pauses.pause_s(Change(was=was, now=p(4, 1, 4), lost=lost)) == pytest.approx(regroup)
        assert pauses.pause_s(Change(was=p(8, 2, 4), now=p(4, 1, 4), lost=lost)) >= regroup
    assert pauses.pause_s(Change(was=p(8, 2, 4), now=p(4, 1, 4), lost=4)) > regroup + 1e-3
    more = Change(was=was, now=p(4, 1, 4), lost=5)  # one on demand went, too: then any may have
    assert pauses.pause_s(more) == pauses.pause_s(replace(more, was=p(8, 2, 4)))


def test_the_same_grid_on_instances_of_the_other_market_is_sent_to_them():
    pauses = LivePauses(PROFILE)
    spot, mixed = p(8, 2, 4), replace(p(8, 2, 4), steady=4)
    send_s = float(PROFILE.moves.group_s_QG[PROFILE.moves.depth_C[PROFILE.at[2, 4]]].max())
    there = pauses.pause_s(Change(was=spot, now=mixed))
    assert there == pytest.approx(float(PROFILE.moves.regroup_C[PROFILE.at[2, 4]]) + send_s)
    assert there > send_s > 0.0
    assert pauses.pause_s(Change(was=mixed, now=spot)) == there
    spare = replace(p(9, 2, 4), steady=9)
    assert pauses.pause_s(Change(was=spare, now=replace(spare, steady=8))) == 0.0  # only the spare goes


def test_a_change_that_cuts_another_short_regroups_once_more_and_no_change_waits_for_the_rest():
    pauses = LivePauses(PROFILE)
    once = pauses.pause_s(Change(was=p(9, 2, 4), now=p(9, 3, 3)))
    again = pauses.pause_s(Change(was=p(9, 2, 4), now=p(9, 3, 3), left_s=4.0))
    assert again - once == pytest.approx(COSTS.restart_s(3, 3, grow=False))
    assert pauses.pause_s(Change(was=p(9, 2, 4), now=p(10, 2, 4), left_s=4.0)) == 4.0


def test_through_storage_even_the_same_grid_costs_a_restart():
    pauses = StoragePauses(PROFILE)
    assert pauses.pause_s(Change(was=None, now=p(8, 2, 4))) == COSTS.checkpoint_s(2, 4, grow=True, saved=False)
    same = pauses.pause_s(Change(was=p(9, 2, 4), now=p(8, 2, 4), lost=1))
    assert same == COSTS.checkpoint_s(2, 4, grow=False, saved=True)
    cut = pauses.pause_s(Change(was=p(9, 2, 4), now=p(8, 2, 4), lost=1, left_s=1.0))
    assert cut == same + COSTS.restart_s(2, 4, grow=False)


def test_it_prints_without_its_tables():
    assert len(repr(Gridded(PROFILE))) < 1_000
