"""What a shape on a cluster is worth to a job: beside the definition, shape by shape, and in examples by hand."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from sublet.planning.options import OptionsTable
from sublet.policies.price.cluster_split import Claims, _median, _possible, _values
from sublet.policies.price.congestion import WAIT

INF = math.inf
SURE = SimpleNamespace(doubt_C=None, belief_C=None)  # a menu of known speeds


def claims(
    rate, *, gpus=None, pause=0.0, cost=0.0, row=None, menus=None, left=100.0, gpu_rate=1.0, efficient=None, **facts
):
    """Jobs with nothing done, half an hour old, with ten hours left and no place; a row of shapes of each."""
    rate_JC = np.array(rate, dtype=float)
    jobs, shapes = rate_JC.shape
    left_J, unused_J = np.full(jobs, left), np.zeros(jobs)
    gpus_KJC = np.ones((1, jobs, shapes)) if gpus is None else np.array(gpus, dtype=float)
    table = OptionsTable(
        menus=menus or [SURE] * jobs,
        value_J=unused_J,
        left_J=left_J,
        gpu_rate_J=np.full(jobs, gpu_rate),
        last_J=unused_J,
        need_J=unused_J,
        perfect_J=unused_J,
        doubted_J=np.array([menu.doubt_C is not None for menu in menus or [SURE] * jobs]),
        rate_JC=rate_JC,
        gpus_JC=gpus_KJC.sum(axis=0),
        rent_JC=np.zeros(rate_JC.shape),
        row_KJC=np.zeros(gpus_KJC.shape, dtype=int) if row is None else np.array(row),
        gpus_KJC=gpus_KJC,
        cost_JC=np.zeros((jobs, shapes)) + cost,
        now_JC=pause + left_J[:, None] / rate_JC,
        hours_JC=rate_JC,
    )
    told = {"left_h_J": 10.0, "weight_J": 1.0, "age_h_J": 0.5, "due_s_J": 0.0, "kept_h_J": 0.0, "held_J": WAIT} | facts
    sized, pinned_J = told.pop("sized", True), np.zeros(jobs, dtype=bool)
    efficient_JC = np.ones((jobs, shapes), dtype=bool) if efficient is None else np.array(efficient)
    arrays = {name: np.zeros(jobs, dtype=int if name == "held_J" else float) + each for name, each in told.items()}
    arrays |= {"runs_J": arrays["held_J"], "turn_J": np.full(jobs, np.inf)}
    return Claims(table=table, sized=sized, efficient_JC=efficient_JC, pinned_J=pinned_J, **arrays)


def values(*args, most=(99.0,), **facts):
    made, most_R = claims(*args, **facts), np.array(most, dtype=float)
    return _values(made, _possible(made, most_R), most_R)


def test_where_there_is_enough_for_all_it_is_the_power_of_the_work_done_beside_the_fastest():
    assert values([[3.0, 6.0]], gpu_rate=3.0)[0] == pytest.approx([0.5**0.85, 1.0])
    # weights count beside their median
    assert values([[3.0, 6.0]] * 2, weight_J=[1.0, 3.0])[:, 1] == pytest.approx([0.5, 1.5], rel=1e-5)


@pytest.mark.parametrize("times", [1e-9, 1e9])
def test_weights_count_by_what_they_are_to_one_another(times):
    shapes = {"gpus": [[[1.0, 2.0]] * 3], "most": (4.0,)}
    once, scaled = (
        values([[1.0, 1.5]] * 3, weight_J=np.array([1.0, 2.0, 5.0]) * each, **shapes) for each in (1, times)
    )
    assert scaled == pytest.approx(once)


def test_where_gpus_are_short_a_job_is_worth_what_it_costs_in_the_shape_that_is_cheapest_with_them():
    """Both want one GPU at a rate of 1 and more: 1 + p against (1 + 2 p) / 1.5, so that is what two GPUs cost here."""
    found = values([[1.0, 1.5]] * 2, gpus=[[[1.0, 2.0]] * 2], most=(2.0,))
    assert found[0] == pytest.approx([2.0, 2.0 * 1.5**0.85], rel=0.02)


def test_where_gpus_are_short_they_cost_a_job_with_less_left_than_the_median_more():
    """Nothing brings three jobs onto two GPUs: 1000 hours an hour, by (4 / 1) ** 0.35 and (4 / 16) ** 0.35."""
    short = values([[1.0]] * 3, left_h_J=[1.0, 4.0, 16.0], most=(2.0,))[:, 0]
    assert short == pytest.approx([1.0 + 1e3 * 4.0**0.35, 1001.0, 1.0 + 1e3 * 0.25**0.35], rel=1e-5)
    assert values([[1.0]] * 3, left_h_J=[1.0, 4.0, 16.0], most=(3.0,))[:, 0] == pytest.approx([1.0] * 3, rel=1e-5)


def test_an_old_job_counts_more():
    """With an age of 3.5 hours, with the half beside it, 4 ** 0.2."""
    assert values([[1.0]], age_h_J=3.5) == pytest.approx(4.0**0.2)


def test_a_new_place_is_thought_to_last_a_minute_of_training_or_less_where_the_job_ends_before():
    """A pause of 0.033 h beside 0.33 of 0.05 h. With 0.011 h left, a quarter; at weight 0.5, 0.0055 of 0.0385."""
    assert values([[1.0]], pause=0.033) == pytest.approx(1.0 / 3.0)
    assert values([[1.0]], pause=0.033, left_h_J=0.011) == pytest.approx(0.25)
    assert values([[1.0]], pause=0.033, left_h_J=0.011, weight_J=0.5) == pytest.approx(1.0 / 7.0)
    assert values([[2.0]], pause=0.033, left_h_J=0.011) == pytest.approx(1.0 / 7.0)  # twice as fast
    assert values([[1.0]], pause=0.033, left_h_J=0.011, sized=False) == pytest.approx(1.0 / 3.0)  # who knows


def test_the_longer_a_job_has_kept_its_place_the_less_a_move_costs_it():
    """After 0.95 h another is thought to last 0.33 h, and after 1.95 h 0.66, or to the end of the job."""
    found = values([[1.0]] * 3, pause=0.11, kept_h_J=[0.0, 0.95, 1.95])[:, 0]
    assert found == pytest.approx([0.0165 / 0.1265, 0.75, 6.0 / 7.0], rel=1e-5)
    assert values([[1.0]], pause=0.11, kept_h_J=0.95, left_h_J=0.11) == pytest.approx(0.5)


def test_a_pause_costs_the_part_of_the_value_that_it_takes_of_the_time():
    """Half of what is half as fast, and of the fastest too, where half of the time is lost."""
    assert values([[4.0, 8.0]], pause=0.0165)[0] == pytest.approx([0.5 * 0.5**0.85, 0.5])


def test_what_ends_before_it_begins_is_worth_next_to_nothing_and_not_nothing():
    assert values([[1.0]], pause=9.0, left_h_J=1e-8) == pytest.approx(1e-6)


def test_what_cannot_run_or_is_more_than_there_is_cannot_be_had():
    found = values([[1.0, 1.0, 1.0]], gpus=[[[1.0, 5.0, 4.0]]], cost=[[INF, 0.0, 0.0]], most=(4.0,))
    assert found[0].tolist() == [-INF, -INF, 1.0]
    both = values([[1.0, 1.0]], gpus=[[[2.0, 2.0]], [[1.0, 2.0]]], row=[[[0, 0]], [[1, 1]]], most=(2.0, 1.0))
    assert both[0].tolist() == [1.0, -INF]
    assert values([[1.0]], gpus=[[[0.0]]], most=(-3.0,))[0].tolist() == [1.0]  # who needs none of it has it


def test_what_is_not_worth_its_gpus_cannot_be_had_but_by_who_has_it_and_where_nothing_else_can():
    efficient = [[True, False, False]] * 2
    found = values([[1.0, 1.0, 1.0]] * 2, efficient=efficient, held_J=[2, WAIT])
    assert (found > 0.0).tolist() == [[True, False, True], [True, False, False]]
    assert (values([[1.0] * 3], cost=[[INF, 0.0, 0.0]], efficient=efficient[:1]) > 0.0).tolist() == [
        [False, True, True]
    ]


def test_of_jobs_that_are_alike_the_first_counts_more_by_next_to_nothing():
    found = values([[1.0]] * 3)[:, 0]
    assert found.tolist() == pytest.approx([1.0, 1.0 - 1e-6, 1.0 - 2e-6], abs=1e-12)


def test_who_has_waited_too_long_comes_before_all_and_the_oldest_first():
    found = values([[1.0]] * 3, due_s_J=[0.0, 5.0, 1000.0])[:, 0]
    assert found.tolist() == pytest.approx([1.0, 1e6 + 5.0, 1e6 + 1000.0], rel=1e-5)


def test_of_shapes_that_are_worth_the_same_a_job_keeps_what_it_has():
    found = values([[1.0, 1.0]] * 2, held_J=[1, WAIT])
    assert found[0].tolist() == pytest.approx([1.0, 1.0 + 1e-6], abs=1e-12)
    assert found[1, 0] == found[1, 1]


def test_what_is_believed_of_others_is_worth_less_by_what_may_be_wrong_with_either():
    """Of the shape that it has 30 % may be wrong, of others 40 %: half as much again. One goes as fast in any case."""
    menu = SimpleNamespace(doubt_C=np.array([0.3, 0.4, 0.4]), belief_C=np.array([7, 8, 7]))
    found = values([[1.0] * 3] * 2, held_J=[0, WAIT], menus=[menu, menu])
    assert found[0].tolist() == pytest.approx([1.0, 1.0 / 1.5, 1.0], rel=1e-5)
    assert found[1].tolist() == pytest.approx([1.0] * 3, abs=1e-5)


@pytest.mark.parametrize("numbers", [[3.0], [3.0, 1.0], [9.0, 1.0, 4.0], [4.0, 8.0, 1.0, 2.0]])
def test_the_median_is_the_middle_or_between_the_two(numbers):
    assert _median(np.array(numbers)) == statistics.median(numbers)
