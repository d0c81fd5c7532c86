"""A profiling run goes through widths and batches within its time, and says what it left out."""

from __future__ import annotations

from collections import deque

import pytest

from sublet.errors import InvalidValue
from sublet.runtime.profiles.learned import Profiling
from sublet.runtime.profiling.course import Course, Stop, few_batches, form_of


def heard(*forms, reports=9, batch=64, adaptive=(64, 32, 256)):
    """A job that has told of these (width, samples at a time)."""
    initial, low, high = adaptive
    told = {("T4", width, 1, samples, 1): deque([(0.1, 0.1, 0.0)] * reports) for width, samples in forms}
    return Profiling(forms=told, initial=initial, low=low, high=high, batch=batch)


def walked(course, *, step_s=1.0, most=200, **told):
    """Every stop until the end, if each is heard of as soon as it is taken."""
    stops, forms, now_s = [], [], 0.0
    for _ in range(most):
        if course.at is None:
            return stops
        if course.at not in stops:
            stops.append(course.at)
        forms.append((course.at.width, (course.at.batch or 64) // course.at.width))
        now_s += step_s
        course.look(heard(*forms, **told), course.at.width, now_s)
    raise AssertionError(f"still at {course.at}")


def test_every_pair_is_visited_the_narrow_ones_first():
    course = Course(widths=[2, 1], batches=[128, 64], end_s=1e3)
    assert walked(course) == [Stop(1, 64), Stop(1, 128), Stop(2, 64), Stop(2, 128)]
    assert course.been == [Stop(1, 64), Stop(1, 128), Stop(2, 64), Stop(2, 128)]
    assert course.notes == []


def test_batches_that_nobody_names_are_those_that_the_script_can_have():
    course = Course(widths=[1], end_s=1e3)
    assert course.at == Stop(1, None)
    walked(course)
    assert course.been[0] == Stop(1, 64)
    assert {stop.batch for stop in course.been} == {32, 64, 128, 256}


def test_a_fixed_batch_is_measured_at_every_width_and_no_other():
    course = Course(widths=[1, 2], end_s=1e3)
    walked(course, adaptive=(0, 0, 0))
    assert course.been == [Stop(1, 64), Stop(2, 64)]
    with pytest.raises(InvalidValue, match="left out, or 64: the script's session has no batch_range"):
        walked(Course(widths=[1], batches=[64, 128], end_s=1e3), adaptive=(0, 0, 0))


def test_a_batch_outside_of_the_range_of_the_script_is_refused_with_the_range():
    with pytest.raises(InvalidValue, match="from 32 to 256, the script's batch_range"):
        walked(Course(widths=[1], batches=[64, 512], end_s=1e3))


def test_the_time_is_shared_and_what_it_does_not_suffice_for_is_told():
    course = Course(widths=[1], batches=[64, 128, 256], end_s=12.0)
    few = {"reports": 1}
    course.look(heard((1, 64), **few), 1, 0.0)
    course.look(heard((1, 64), **few), 1, 3.9)
    assert course.at == Stop(1, 64)  # a third of the time is its own
    course.look(heard((1, 64), **few), 1, 4.0)
    assert course.at == Stop(1, 128)
    course.look(heard((1, 64), **few), 1, 11.9)
    assert course.at == Stop(1, 128)  # nothing was heard of it: it gets twice its part
    course.look(heard((1, 64), **few), 1, 12.0)
    assert course.at is None
    assert course.notes == [f"1 worker, batch {batch}: no time was left for it" for batch in (128, 256)]


def test_a_stop_of_which_nothing_is_heard_is_left_and_told():
    course = Course(widths=[1], batches=[64, 128], end_s=90.0)
    course.look(heard((1, 64)), 1, 0.0)
    course.look(heard((1, 64)), 1, 1.0)
    assert course.at == Stop(1, 128)
    course.look(heard((1, 64), (1, 64)), 1, 200.0)
    assert course.at is None
    course = Course(widths=[1], batches=[32, 64, 128, 256], end_s=90.0)
    course.look(heard((1, 999)), 1, 10.0)
    course.look(heard((1, 999)), 1, 50.0)
    assert course.at == Stop(1, 64)
    assert "1 worker, batch 32: not a whole step was seen in 40 s; give more --seconds" in course.notes


def test_starting_workers_is_no_time_of_a_stop():
    course = Course(widths=[1, 2], batches=[64], end_s=100.0)
    course.look(heard((1, 64)), 1, 0.0)
    course.look(heard((1, 64)), 1, 1.0)
    for now_s in (20.0, 40.0, 60.0):
        course.look(heard((1, 64)), 1, now_s)
        assert course.at == Stop(2, 64)
    course.look(heard((1, 64), (2, 32), reports=1), 2, 99.0)  # 40 s were left to it when its workers were there
    assert course.at == Stop(2, 64)


def test_fewer_samples_than_workers_are_left_out_and_told():
    course = Course(widths=[1, 64], batches=[32, 64], end_s=1e3)
    walked(course)
    assert Stop(64, 32) not in course.been
    assert course.notes == ["64 workers, batch 32: left out, it has fewer samples than workers"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"widths": []}, "--widths"), ({"widths": [0]}, "--widths"), ({"widths": [1], "batches": [8, 8]}, "--batches")],
)
def test_what_cannot_be_walked_is_refused(wrong, named):
    with pytest.raises(InvalidValue, match=named):
        Course(**wrong)


def test_a_few_batches_hold_the_ends_and_the_scripts_own():
    assert few_batches(64, 64, 64) == [64]
    assert few_batches(64, 64, 1024) == [64, 161, 406, 1024]  # 64 times 16 to the power of 0, 1/3, 2/3 and 1
    assert few_batches(100, 64, 1024) == [64, 100, 406, 1024]
    assert few_batches(2, 1, 3) == [1, 2, 3]


def test_a_form_is_that_of_the_share_of_a_worker():
    forms = {("T4", 2, 1, 16, 2): 1, ("T4", 2, 1, 64, 1): 1, ("T4", 1, 1, 32, 1): 1}
    assert form_of(Stop(2, 64), forms) == ("T4", 2, 1, 16, 2)
    assert form_of(Stop(2, 127), forms) == ("T4", 2, 1, 64, 1)
    assert form_of(Stop(2, 256), forms) is None
    assert form_of(Stop(4, 64), forms) is None
    assert form_of(Stop(1, None), forms) is None
