"""Below some samples a micro-batch takes no less: where rows show it, it is foretold, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.perf.live.fit import SURE, fitted_step, least_samples
from sublet.perf.live.rows import StepRow
from tests.rigs.sizes import examples

# One H200, a GPT of 124 million parameters: docs/background/live-figures.md, `python -m benchmarks.gpu`.
H200_MS = {4: 25.1, 6: 29.0, 8: 37.4, 12: 54.0, 16: 70.3, 24: 103.0, 32: 136.0, 48: 199.0}


def rows_of(piece_s_by_samples, error=0.02, widths=(1,)):
    return tuple(
        StepRow(gpu="H200", gpus=k, samples=samples, step_s=piece_s, piece_s=piece_s, error=error)
        for samples, piece_s in piece_s_by_samples.items()
        for k in widths
    )


def foretold_s(rows, samples):
    return float(fitted_step(rows).times((1,), np.array([float(samples)]))[0][0])


def misfit(local, piece_s, error, least):
    """Of the best line over max(samples, least), by a solver of another kind."""
    from scipy.optimize import nnls

    weight = 1.0 / (piece_s * error)
    above = np.maximum(local, least)
    return nnls(np.stack([weight, weight * above], axis=1), weight * piece_s)[1] ** 2


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.integers(1, 64), min_size=4, max_size=8, unique=True),
    st.floats(0.0, 0.1),
    st.floats(1e-4, 0.02),
    st.floats(1.0, 40.0),
    st.integers(0, 2**32 - 1),
)
def test_no_other_floor_fits_better_and_one_is_told_only_where_it_is_much_better(sizes, alpha, beta, knee, seed):
    rng = np.random.default_rng(seed)
    local = np.array(sorted(sizes), dtype=float)
    piece_s = (alpha + beta * np.maximum(local, knee)) * np.exp(rng.normal(0.0, 0.02, len(local)))
    error = rng.uniform(0.01, 0.05, len(local))
    tried = np.linspace(local[0], local[-3], 40)
    best, plain = min(misfit(local, piece_s, error, x) for x in tried), misfit(local, piece_s, error, 0.0)
    found = least_samples(local, piece_s, error)
    if found:
        assert local[0] < found <= local[-3]
        assert misfit(local, piece_s, error, found) <= best * (1.0 + 1e-6) + 1e-9
        assert plain - misfit(local, piece_s, error, found) >= SURE * (1.0 - 1e-6)
    else:
        scatter = max(1.0, best / max(1, len(local) - 3))
        assert plain - best < SURE * scatter * (1.0 + 1e-6) + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_with_a_planted_floor_the_rest_is_foretold(seed):
    rng = np.random.default_rng(seed)
    alpha, beta, knee = rng.uniform(0.0, 0.01), rng.uniform(2e-3, 6e-3), rng.uniform(9.0, 30.0)

    def true_s(samples):
        return alpha + beta * max(samples, knee)

    rows = rows_of({n: true_s(n) * np.exp(rng.normal(0.0, 0.01)) for n in (2, 4, 8, 32, 64, 128)}, widths=(1, 2))
    for samples in (1, 3, 6, 40, 96, 200):
        assert foretold_s(rows, samples) == pytest.approx(true_s(samples), rel=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_without_a_floor_none_is_found(seed):
    rng = np.random.default_rng(seed)
    alpha, beta = rng.uniform(0.0, 0.05), rng.uniform(1e-4, 6e-3)
    local = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    assert least_samples(local, (alpha + beta * local) * np.exp(rng.normal(0.0, 0.02, 6)), np.full(6, 0.02)) == 0.0


def test_three_sizes_tell_no_floor_and_one_size_neither():
    assert least_samples(np.array([1.0, 8.0, 16.0]), np.array([8.0, 8.0, 16.0]), np.full(3, 0.01)) == 0.0
    assert least_samples(np.array([8.0, 8.0]), np.array([1.0, 1.1]), np.full(2, 0.01)) == 0.0


def test_rows_that_differ_by_something_else_tell_no_floor():
    """Two workers that share a device compute half as fast: no line goes through both, and a level helps but little."""
    local = np.array([4.0, 8.0, 16.0, 32.0] * 2)
    piece_s = (1.0 + local) * np.repeat([1.0, 2.0], 4) * np.tile([1.2, 1.0, 1.0, 1.0], 2)
    assert misfit(local, piece_s, np.full(8, 0.02), 0.0) - misfit(local, piece_s, np.full(8, 0.02), 5.5) > SURE
    assert least_samples(local, piece_s, np.full(8, 0.02)) == 0.0


def test_what_a_gpu_takes_for_a_size_that_was_left_out_is_foretold():
    """A line through all of them is off by up to 8.7 % there, where its least size is known."""
    for left_out in list(H200_MS)[1:]:
        rows = rows_of({n: ms / 1e3 for n, ms in H200_MS.items() if n != left_out})
        assert foretold_s(rows, left_out) == pytest.approx(H200_MS[left_out] / 1e3, rel=0.03)
    assert foretold_s(rows_of({n: ms / 1e3 for n, ms in H200_MS.items()}), 4) == pytest.approx(0.0251, rel=0.02)
