from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.perf.steptime import PolluxStep, RingStep, iteration_s

RING = RingStep(
    alpha_s=0.1,
    beta_s=0.01,
    gradient_bytes=1e9,
    intra_bytes_per_s=1e10,
    inter_bytes_per_s=1e9,
    intra_latency_s=1e-5,
    inter_latency_s=1e-4,
)
POLLUX = PolluxStep(alpha_c_s=0.1, beta_c_s=0.01, alpha_n_s=0.5, beta_n_s=0.02, alpha_r_s=0.2, beta_r_s=0.01, gamma=2.0)


def step(model, spread, local):
    return float(model.times(spread, np.array([float(local)]))[0][0])


def test_a_ring_sends_the_gradient_twice_less_one_share():
    # 8 GPUs in one node: 14 messages of an eighth of a gigabyte at 10 GB/s, and 14 latencies.
    assert RING.exchange_s((8,)) == pytest.approx(14 * (1e-5 + 1e9 / 8 / 1e10))
    assert RING.exchange_s((4, 4)) == pytest.approx(14 * (1e-4 + 1e9 / 8 / 1e9))
    assert step(RING, (8,), 10) == pytest.approx(0.2 + RING.exchange_s((8,)))


def test_one_gpu_exchanges_nothing():
    assert RING.exchange_s((1,)) == 0.0
    assert step(RING, (1,), 10) == pytest.approx(0.2)
    assert step(POLLUX, (1,), 10) == pytest.approx(0.2)


def test_nodes_that_lend_no_gpu_are_no_nodes():
    assert step(RING, (0, 4, 0), 10) == step(RING, (4,), 10)
    assert step(POLLUX, (0, 4, 0), 10) == step(POLLUX, (4,), 10)


def test_pollux_is_a_norm_of_compute_and_exchange():
    assert step(POLLUX, (2,), 10) == pytest.approx(math.hypot(0.2, 0.2))
    assert step(POLLUX, (4,), 10) == pytest.approx(math.hypot(0.2, 0.2 + 0.01 * 2))
    assert step(POLLUX, (2, 2), 10) == pytest.approx(math.hypot(0.2, 0.5 + 0.02 * 2))


def test_more_overlap_is_never_slower():
    times = [
        step(
            PolluxStep(
                alpha_c_s=0.1,
                beta_c_s=0.01,
                alpha_n_s=0.5,
                beta_n_s=0.02,
                alpha_r_s=0.2,
                beta_r_s=0.01,
                gamma=gamma,
            ),
            (4, 4),
            20,
        )
        for gamma in (1.0, 1.5, 2.0, 5.0, 10.0)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(0.3 + 0.5 + 0.02 * 6)
    assert times[-1] >= 0.5 + 0.02 * 6


def test_accumulation_adds_micro_batches_without_exchange():
    local, accumulation = np.array([10.0, 10.0]), np.array([0.0, 3.0])
    once, four = iteration_s(RING, (4, 4), local, accumulation)
    assert four - once == pytest.approx(3 * 0.2)


def test_nonsense_is_refused():
    with pytest.raises(InvalidValue, match="alpha_s \\+ beta_s"):
        RingStep(alpha_s=0, beta_s=0, gradient_bytes=1, intra_bytes_per_s=1, inter_bytes_per_s=1)
    with pytest.raises(InvalidValue, match="inter_bytes_per_s"):
        RingStep(alpha_s=1, beta_s=0, gradient_bytes=1, intra_bytes_per_s=1, inter_bytes_per_s=0)
    with pytest.raises(InvalidValue, match="gamma"):
        PolluxStep(alpha_c_s=1, beta_c_s=0, alpha_n_s=0, beta_n_s=0, alpha_r_s=0, beta_r_s=0, gamma=0.9)
