"""What a GPU costs in hours of jobs: at that price as many are wanted as there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.policies.price.cluster_split import CLOSE, LEAST, MOST, going_rate, paid_for_gpus

INF = np.inf


def rate(hours, gpus, most, *, weight=1.0, row=None):
    hours_JC = np.array(hours, dtype=float)
    gpus_KJC = np.zeros((1, *hours_JC.shape)) + np.array(gpus, dtype=float)
    row_KJC = (
        np.zeros(gpus_KJC.shape, dtype=int) if row is None else np.zeros(gpus_KJC.shape, dtype=int) + np.array(row)
    )
    return going_rate(hours_JC, np.zeros(len(hours_JC)) + weight, row_KJC, gpus_KJC, np.array(most, dtype=float))


def wanted(hours, gpus, price, weight=1.0):
    """By hand: of each job the first shape that is cheapest."""
    total = 0
    for of_job, its in zip(hours, gpus, strict=True):
        cost = [(weight + price * g) * h if h < INF else INF for h, g in zip(of_job, its, strict=True)]
        total += its[cost.index(min(cost))]
    return total


def test_nothing_is_asked_where_there_is_enough_for_all():
    assert rate([[1.0, 0.6]] * 2, [1, 2], [4.0]).tolist() == [0.0]
    assert rate([[1.0, 0.6]] * 2, [1, 2], [2.0, 4.0], row=[0, 1]).tolist() == [0.0, 0.0]


def test_it_is_the_price_at_which_the_last_job_gives_up_a_gpu():
    """(1 + p) < 0.6 (1 + 2 p) from p = 2 on: two GPUs that are 1.67 times as fast cost as much as one there."""
    (found,) = rate([[1.0, 0.6]] * 2, [1, 2], [2.0])
    assert 2.0 <= found <= 2.0 * CLOSE


def test_who_weighs_more_gives_up_as_much_later():
    (found,) = rate([[1.0, 0.6]] * 2, [1, 2], [2.0], weight=3.0)
    assert 6.0 <= found <= 6.0 * CLOSE


def test_what_cannot_be_had_is_wanted_by_nobody():
    assert rate([[1.0, INF]] * 2, [1, 99], [2.0]).tolist() == [0.0]
    (found,) = rate([[1.0, INF, 0.6]] * 2, [1, 99, 2], [2.0])
    assert 2.0 <= found <= 2.0 * CLOSE


def test_where_no_price_is_high_enough_it_is_the_highest():
    assert rate([[1.0]] * 3, [1], [2.0]) == pytest.approx([MOST], rel=CLOSE - 1.0)


@given(
    st.lists(
        st.tuples(*[st.one_of(st.just(INF), st.floats(0.1, 10.0))] * 3).filter(lambda hours: min(hours) < INF),
        min_size=1, max_size=8,
    ),
    st.integers(1, 30),
)  # fmt: skip
def test_at_that_price_no_more_is_wanted_than_there_is_and_a_little_below_more(hours, most):
    gpus = [[1, 2, 4]] * len(hours)
    (found,) = rate(hours, [1, 2, 4], [most])
    if found == 0.0:
        assert wanted(hours, gpus, LEAST) <= most
        return
    assert wanted(hours, gpus, found) <= most or found == pytest.approx(MOST, rel=CLOSE - 1.0)
    assert wanted(hours, gpus, found / CLOSE) > most


def test_the_pool_that_more_want_costs_more_and_one_that_nobody_wants_next_to_nothing():
    """One that is twice as fast and nine others: it costs an hour, 0.5 (1 + 1), for else all want it, or nobody."""
    fast, slow = rate([[0.5, 1.0]] * 6, [1, 1], [1.0, 9.0], row=[0, 1])
    assert fast == pytest.approx(1.0, rel=0.3)
    assert slow < 0.05
    scarce, idle = rate([[0.5, INF]] * 6, [1, 1], [1.0, 9.0], row=[0, 1])
    assert scarce > 5.0
    assert idle < 0.01 * scarce


def test_pools_that_are_alike_cost_alike():
    """Six jobs that may go to either of two pools; which of these comes first in their rows is the same for half."""
    hours = [[1.0, 1.0, 0.6, 0.6]] * 6
    row = np.array([[0, 1, 0, 1], [1, 0, 1, 0]] * 3)
    one, other = rate(hours, [1, 1, 2, 2], [4.0, 4.0], row=row[None])
    assert one == pytest.approx(other, rel=0.2)


def test_what_is_paid_is_by_row():
    gpus_KJC, row_KJC = np.array([[[1.0, 2.0]], [[0.0, 3.0]]]), np.array([[[0, 0]], [[0, 1]]])
    assert paid_for_gpus(np.array([2.0, 10.0]), row_KJC, gpus_KJC).tolist() == [[2.0, 34.0]]
    assert paid_for_gpus(np.array([2.0]), row_KJC[:1], gpus_KJC[:1]).tolist() == [[2.0, 4.0]]
