"""Who is not left waiting so that others can be wider."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sublet.policies.price.cluster_split import _fits, _must_run


def claims(need, left_h, *, pinned=None, due_s=None, perfect=False, turn=None):
    jobs = len(need)
    table = SimpleNamespace(perfect_J=np.full(jobs, perfect), need_J=np.array(need, dtype=float))
    return SimpleNamespace(
        table=table,
        left_h_J=np.array(left_h, dtype=float),
        due_s_J=np.zeros(jobs) if due_s is None else np.array(due_s, dtype=float),
        pinned_J=np.zeros(jobs, dtype=bool) if pinned is None else np.array(pinned),
        turn_J=np.full(jobs, np.inf) if turn is None else np.array(turn, dtype=float),
    )


def test_where_there_is_room_for_the_least_of_all_everyone_runs():
    assert _must_run(claims([1, 2, 1], [9, 1, 5]), 4.0).tolist() == [True, True, True]


def test_else_the_least_work_comes_first_and_each_takes_what_it_needs_from_the_room():
    assert _must_run(claims([1, 2, 1, 1], [9, 1, 5, 7]), 3.0).tolist() == [False, True, True, False]
    assert _must_run(claims([3, 2, 1], [1, 5, 9]), 2.0).tolist() == [False, True, False]  # who does not fit is passed
    assert _must_run(claims([2, 1, 1], [1, 5, 9]), 2.5).tolist() == [True, False, False]


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 9.0), st.booleans()), min_size=1, max_size=9), st.data())
def test_those_before_the_first_that_has_no_room_and_those_behind_it_are_found_as_one_by_one(jobs, data):
    need, left_h, pinned = zip(*jobs, strict=True)
    room = data.draw(st.integers(0, sum(need)))
    expected, left = list(pinned), room
    for at in sorted(range(len(need)), key=lambda at: left_h[at]):
        if need[at] <= left:
            expected[at], left = True, left - need[at]
    found = _must_run(claims(need, left_h, pinned=pinned), float(room))
    assert found.tolist() == (expected if room < sum(need) else [True] * len(need))


def test_whoever_is_due_comes_before_them_and_who_is_pinned_stays():
    assert _must_run(claims([1, 1, 1], [1, 5, 9], due_s=[0, 0, 100]), 1.0).tolist() == [False, False, True]
    assert _must_run(claims([1, 1, 1], [1, 5, 9], pinned=[False, False, True]), 1.0).tolist() == [True, False, True]


def test_where_width_wastes_nothing_nobody_must_but_who_is_pinned():
    assert _must_run(claims([1, 1], [1, 5], perfect=True, pinned=[False, True]), 9.0).tolist() == [False, True]


def test_a_deadline_that_can_be_met_goes_before_all_of_them_and_those_that_are_pinned_before_the_rest():
    turn = [np.inf, 1, 0, np.inf]
    assert _must_run(claims([1, 1, 1, 1], [1, 9, 9, 5], turn=turn), 1.0).tolist() == [False, False, True, False]
    assert _must_run(claims([1, 1, 1, 1], [1, 9, 9, 5], turn=turn), 3.0).tolist() == [True, True, True, False]
    late = claims([1, 1, 1, 1], [1, 9, 9, 5], turn=turn, due_s=[100, 0, 0, 200], pinned=[True, False, False, False])
    assert _must_run(late, 1.0).tolist() == [False, False, True, False]
    assert _must_run(late, 3.0).tolist() == [True, True, True, False]
    assert _must_run(claims([1, 4, 1, 1], [1, 9, 9, 5], turn=turn), 2.0).tolist() == [True, False, True, False]


def test_where_width_wastes_nothing_who_has_a_deadline_must_run_beside_who_is_pinned():
    dated = claims([1, 1, 1], [1, 5, 9], perfect=True, turn=[np.inf, np.inf, 0], pinned=[False, True, False])
    assert _must_run(dated, 9.0).tolist() == [False, True, True]
    assert _must_run(dated, 1.0).tolist() == [False, False, True]


def test_choices_fit_where_each_pool_has_what_they_use_together():
    table = SimpleNamespace(
        row_KJC=np.array([[[0, 1], [0, 1], [0, 0]]]), gpus_KJC=np.array([[[2.0, 3.0], [2.0, 4.0], [1.0, 1.0]]])
    )
    assert _fits(table, np.array([1, 1, 0]), np.array([4.0, 0.0]))
    assert not _fits(table, np.array([1, 1, 1]), np.array([4.0, 9.0]))
    assert _fits(table, np.array([1, 2, 1]), np.array([3.0, 4.0]))
    assert not _fits(table, np.array([2, 2, 0]), np.array([9.0, 6.0]))
    assert _fits(table, np.array([0, 0, 0]), np.zeros(2))
