"""Jobs that learn how fast they are where they run, and guess the rest."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.domain.plan import JobState, Phase, Pool
from sublet.domain.shape import Shape
from sublet.errors import MissingData
from sublet.perf.measured import measured_goodput
from sublet.testing.values import a_job
from sublet_lab.sia_learned import Learned, step_from_rows

POOLS = {gpu: Pool(name=gpu, gpu=gpu, gpus_per_node=size, offer_ids=(gpu,)) for gpu, size in (("T4", 4), ("A100", 8))}


def rows(*table):
    return tuple(np.array(column, dtype=np.float64) for column in zip(*table, strict=True))


def test_a_single_row_is_half_fixed_cost_and_scales_without_end():
    step = step_from_rows(*rows((1, 1, 32, 0.4, 0.4)))
    assert (step.alpha_c_s, step.beta_c_s * 32) == pytest.approx((0.2, 0.2))
    assert step.exchange_s((4, 4)) == 0.0


def test_what_was_seen_is_what_is_expected():
    table = [(1, 1, 16, 0.2, 0.2), (1, 1, 32, 0.3, 0.3), (2, 1, 32, 0.35, 0.3), (4, 1, 32, 0.37, 0.3)]
    step = step_from_rows(*rows(*table))
    for gpus, _, local, step_s, _ in table:
        assert float(step.times((gpus,), np.array([float(local)]))[0][0]) == pytest.approx(step_s)


def test_an_unseen_network_is_a_little_slower_than_a_node():
    step = step_from_rows(*rows((2, 1, 32, 0.4, 0.3)))
    assert step.exchange_s((1, 1)) == pytest.approx(1.1 * step.exchange_s((2,)))
    seen = step_from_rows(*rows((2, 1, 32, 0.4, 0.3), (8, 2, 32, 0.9, 0.3)))
    assert seen.exchange_s((4, 4)) == pytest.approx(0.6)


def test_times_that_fall_with_size_are_taken_for_constant():
    step = step_from_rows(*rows((1, 1, 16, 0.3, 0.3), (1, 1, 32, 0.2, 0.2)))
    assert step.beta_c_s == 0.0
    assert 0.2 < step.alpha_c_s < 0.3


@pytest.fixture
def job():
    try:
        speed = measured_goodput("cifar10", source="sia")
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])
    return a_job("a", speed=speed, work=speed.ends[-1], gpus=1, max_gpus=16, model="cifar10")


def on(job, gpu, *spread):
    gpus = sum(spread)
    return JobState(job=job, seq=0, phase=Phase.RUNNING, shape=Shape(gpu, gpus), gpu=gpu, gpus=gpus, spread=spread)


@pytest.mark.outside_data
def test_a_job_that_never_ran_takes_one_gpu_of_any_kind_for_as_good_as_another(job):
    learned = Learned({"a": 4096}, {"T4": 4, "A100": 8})
    state = JobState(job=job, seq=0)
    assert [learned(state, POOLS[gpu], gpus, 60.0) for gpu in POOLS for gpus in (1, 2)] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.outside_data
def test_a_job_hopes_for_much_before_it_has_tried(job):
    learned = Learned({"a": 4096}, {"T4": 4, "A100": 8})
    hoped = learned(on(job, "T4", 1), POOLS["T4"], 8, 60.0)
    wide = on(job, "T4", 4, 4)
    later = learned(wide, POOLS["T4"], 8, 60.0 + 1e-6)
    assert hoped > later
    assert later == pytest.approx(job.speed.rate("T4", (4, 4), wide.done_at(60.0)), rel=0.25)


@pytest.mark.outside_data
def test_another_kind_is_reckoned_from_the_one_that_was_seen(job):
    learned = Learned({"a": 4096}, {"T4": 4, "A100": 8})
    state = on(job, "T4", 1)
    one, four = (learned(state, POOLS["A100"], gpus, 60.0) / learned(state, POOLS["T4"], gpus, 60.0) for gpus in (1, 4))
    assert one == pytest.approx(four)  # as if both kinds scaled alike
    assert 2.0 < one < 10.0


@pytest.mark.outside_data
def test_no_more_is_hoped_for_than_the_batch_of_the_user_allows(job):
    bold, meek = (Learned({"a": most}, {"T4": 4, "A100": 8}) for most in (4096, 128))
    state = on(job, "A100", 4)
    assert meek(state, POOLS["A100"], 8, 60.0) < bold(state, POOLS["A100"], 8, 60.0)
