"""How wide a job may be, and what each step is worth."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Shape
from sublet.perf.speedup import Linear, PowerLaw, Table
from sublet.planning.widths import gain_steps, jobs_by_pool, rate_at, useful_widths, worth_growing
from sublet.testing.strategies import speeds
from sublet.testing.values import a_job

POOL = Pool(name="p", gpu="T4", gpus_per_node=4, offer_ids=("o",))


def waiting(job, seq=0):
    return JobState(job=job, seq=seq)


def running(job, gpus, seq=0, pool="p"):
    return JobState(job=job, seq=seq, phase=Phase.RUNNING, shape=Shape(pool, gpus), gpu="T4", gpus=gpus, spread=(gpus,))


@pytest.mark.parametrize(
    ("low", "high", "most", "widths"),
    [
        (1, 12, math.inf, [1, 2, 3, 4, 8, 12]),
        (1, 13, math.inf, [1, 2, 3, 4, 8, 12]),
        (2, 12, 8, [2, 3, 4, 8]),
        (3, 3, math.inf, [3]),
        (4, 9, math.inf, [4, 8]),
        (5, 7, math.inf, [5]),
        (5, 12, math.inf, [5, 8, 12]),
        (6, 6, math.inf, [6]),
        (1, 8, 3, [1, 2, 3]),
        (5, 8, 4, []),
        (1, 8, 0, []),
    ],
)
def test_useful_widths_are_any_count_in_a_node_and_whole_nodes_beyond(low, high, most, widths):
    assert useful_widths(a_job(gpus=low, min_gpus=low, max_gpus=high), 4, most) == widths


@given(st.integers(1, 12), st.integers(0, 12), st.sampled_from([1, 2, 4, 8]), st.integers(0, 30))
def test_useful_widths_stay_between_smallest_largest_and_most(low, more, size, most):
    job = a_job(gpus=low, min_gpus=low, max_gpus=low + more)
    widths = useful_widths(job, size, most)
    assert widths == sorted(set(widths))
    assert all(low <= width <= min(low + more, most) for width in widths)
    assert bool(widths) == (low <= min(low + more, most))


def test_a_rate_is_that_of_the_packed_job_at_its_progress_now():
    assert rate_at(waiting(a_job(max_gpus=6)), POOL, 6, 0.0) == 6.0


def test_the_first_step_is_worth_more_than_anything_and_others_are_gains_per_gpu():
    job = a_job(max_gpus=8, speed=Table(rates={"T4": {1: 10.0, 2: 18.0, 3: 24.0, 4: 28.0, 8: 36.0}}))
    steps = list(gain_steps(waiting(job), POOL, math.inf, 0.0))
    assert steps[0] == (math.inf, 1)
    assert [width for _, width in steps] == [1, 2, 3, 4, 8]
    assert [gain for gain, _ in steps[1:]] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_a_dent_in_a_measured_curve_is_stepped_over():
    job = a_job(max_gpus=4, speed=Table(rates={"T4": {1: 10.0, 2: 9.0, 3: 24.0, 4: 28.0}}))
    assert [width for _, width in gain_steps(waiting(job), POOL, math.inf, 0.0)] == [1, 3, 4]


def test_a_job_does_not_grow_where_that_makes_it_no_faster():
    job = a_job(max_gpus=4, speed=PowerLaw(exponent=0.0))
    assert [width for _, width in gain_steps(waiting(job), POOL, math.inf, 0.0)] == [1]


def test_a_job_that_runs_nowhere_still_has_its_smallest_width():
    job = a_job(max_gpus=4, speed=Table(rates={"A100": {1: 1.0}}))
    assert list(gain_steps(waiting(job), POOL, math.inf, 0.0)) == [(math.inf, 1)]


@given(speeds, st.integers(1, 6), st.integers(0, 14), st.integers(1, 20))
def test_gains_fall_and_widths_rise(speed, low, more, most):
    job = a_job(gpus=low, min_gpus=low, max_gpus=low + more, speed=speed)
    steps = list(gain_steps(waiting(job), POOL, most, 0.0))
    for (gain, width), (next_gain, next_width) in pairwise(steps):
        assert next_width > width
        assert 0 < next_gain <= gain * (1 + 1e-12)


@pytest.mark.parametrize(("restart_s", "worth"), [(0.0, True), (49.0, True), (50.0, False), (60.0, False)])
def test_growing_is_worth_it_if_the_restart_is_shorter_than_the_time_saved(restart_s, worth):
    job = a_job(work=100.0, gpus=1, max_gpus=2, restart_s=restart_s, speed=Linear())  # 100 s on one GPU, 50 s on two
    assert worth_growing(running(job, 1), POOL, 2, 0.0) is worth


def test_jobs_with_gpus_stay_in_their_pool_and_others_go_where_there_is_most_per_job():
    active = [running(a_job("a"), 1, 0, pool="q")]
    queue = [waiting(a_job(name), seq) for seq, name in enumerate("bcde", start=1)]
    groups = jobs_by_pool(iter(active), iter(queue), {"p": 8, "q": 8})
    assert {pool: [s.job.id for s in group] for pool, group in groups.items()} == {
        "p": ["b", "c", "e"],
        "q": ["a", "d"],
    }


def test_no_pool_is_given_more_jobs_than_their_smallest_widths_fit_and_nobody_overtakes():
    queue = [waiting(a_job(f"j{n}", gpus=low, min_gpus=low), n) for n, low in enumerate([3, 2, 1])]
    groups = jobs_by_pool(iter([]), iter(queue), {"p": 4})
    assert [s.job.id for s in groups["p"]] == ["j0"]
