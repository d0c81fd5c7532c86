"""Choices that are made better in pairs keep all limits, and no pair of those that are tried would be better."""

from __future__ import annotations

import itertools

import numpy as np

from sublet.solve.mip import moves
from sublet.solve.mip.moves import allows, best_moves, improved, lowest_bound, near, total
from tests.rigs.coupled import by_use


def several_pools(seed, jobs=7, choices=5, pools=3):
    rng = np.random.default_rng(seed)
    gain = np.concatenate((np.zeros((jobs, 1)), rng.uniform(0.0, 9.0, (jobs, choices - 1))), axis=1)
    use = np.concatenate((np.zeros((pools, jobs, 1)), rng.integers(0, 4, (pools, jobs, choices - 1))), axis=2)
    return by_use(gain, rng.integers(jobs // 2, 2 * jobs, pools).tolist(), use)


def both(asked, most_loss=np.inf):
    loss_JC = lowest_bound(asked.gain_JC, asked.use_RJC, asked.limit_R).losses()
    facts = asked.gain_JC, loss_JC, asked.use_RJC, asked.limit_R
    before_J = near(loss_JC.argmin(axis=1), *facts, most_loss)
    return before_J, improved(before_J, *facts, most_loss), loss_JC


def moved(column_J, *moves):
    other_J = column_J.copy()
    for job, column in moves:
        other_J[job] = column
    return other_J


def test_no_two_jobs_together_and_none_alone_could_gain():
    better = 0
    for seed in range(12):
        asked = several_pools(seed)
        before_J, column_J, _ = both(asked)
        assert allows(asked, column_J)
        better += total(asked, column_J) > total(asked, before_J)
        every = list(itertools.product(range(len(asked.gain_JC)), range(asked.gain_JC.shape[1])))
        for one, other in itertools.product(every, every):
            tried_J = moved(column_J, one, other)
            assert not allows(asked, tried_J) or total(asked, tried_J) <= total(asked, column_J) + 1e-9
    assert better >= 4  # they were rounded such that none could gain alone


def test_nobody_moves_to_what_loses_more_than_it_may():
    """The first would have to give up 3 for the 4 of the second."""
    facts = np.array([[0.0, 3.0], [0.0, 4.0]]), np.array([[3.0, 0.0], [0.0, 0.0]])
    use, limit = np.array([[[0.0, 1.0], [0.0, 1.0]]]), np.array([1.0])
    assert improved(np.array([1, 0]), *facts, use, limit, 2.9).tolist() == [1, 0]
    assert improved(np.array([1, 0]), *facts, use, limit, 3.0).tolist() == [0, 1]


def test_what_is_as_good_is_left_alone():
    gain, use = np.array([[0.0, 3.0], [0.0, 3.0 + 1e-10]]), np.array([[[0.0, 1.0], [0.0, 1.0]]])
    assert improved(np.array([1, 0]), gain, np.zeros((2, 2)), use, np.array([1.0]), 9.0).tolist() == [1, 0]


def test_a_job_is_in_a_pair_with_another_and_not_with_itself():
    """The first may have two or three; beside two the second fits, and no job has two choices."""
    gain, use = np.array([[0.0, 3.0, 4.0], [0.0, 2.0, -9.0]]), np.array([[[0.0, 2.0, 3.0], [0.0, 1.0, 9.0]]])
    for start, left, best in (
        ([0, 0], 3.0, [1, 1]),
        ([2, 0], 3.0, [1, 1]),
        ([0, 0], 9.0, [2, 1]),
        ([0, 0], 0.0, [0, 0]),
    ):
        assert improved(np.array(start), gain, np.zeros((2, 3)), use, np.array([left]), 9.0).tolist() == best


def test_those_that_lose_least_are_paired_and_all_move_as_often_as_it_helps(monkeypatch):
    """With none beside what they have nothing changes; and with as many as there are two pairs of four swap."""
    gain = np.array([[0.0, 3.0], [0.0, 4.0]] * 2)
    loss, use = np.array([[0.5, 0.0], [0.1, 0.0]] * 2), np.array([[[0.0, 1.0]] * 4])
    given = np.array([1, 0, 1, 0]), gain, loss, use, np.array([2.0]), 9.0
    assert improved(*given).tolist() == [0, 1, 0, 1]
    monkeypatch.setattr(moves, "PAIRED", 2)
    assert improved(*given).tolist() == [1, 0, 1, 0]


def test_who_moves_alone_is_paired_with_what_another_has_whatever_that_loses():
    """The first has what loses more than it may, and stays; the second gains alone."""
    gain, loss = np.array([[0.0, 9.0], [0.0, 2.0]]), np.array([[0.0, 5.0], [0.0, 0.0]])
    use, limit = np.array([[[0.0, 1.0], [0.0, 1.0]]]), np.array([2.0])
    assert improved(np.array([1, 0]), gain, loss, use, limit, 1.0).tolist() == [1, 1]


def test_where_they_are_paired_less_is_left_to_branch_and_bound(monkeypatch):
    """Of few jobs that a rough answer is enough for, and of these answers some are better."""
    asked = [several_pools(seed, jobs=12) for seed in range(30)]
    start_J = np.zeros(12, dtype=np.intp)
    paired = [best_moves(each, start=start_J, tolerance=0.05, rough=True) for each in asked]
    monkeypatch.setattr(moves, "improved", lambda column_J, *_: column_J)
    alone = [best_moves(each, start=start_J, tolerance=0.05, rough=True) for each in asked]
    asks = [sum(found.method == "mip" for found in answers) for answers in (paired, alone)]
    assert asks[0] <= 0.7 * asks[1]
    found = [(one.total, other.total) for one, other in zip(paired, alone, strict=True) if other.method == "prices"]
    assert all(one >= other for one, other in found)
    assert any(one > other for one, other in found)
