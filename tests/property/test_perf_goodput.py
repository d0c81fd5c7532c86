"""The chosen batch is the best one, checked against a plain loop over the same grid."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.perf.goodput import GRID_POINTS, SLACK, BatchLimits, batch_grid, choose_batch, efficiency, fixed_split
from sublet.perf.steptime import PolluxStep

times = st.floats(1e-4, 1.0)
steps = st.builds(
    PolluxStep,
    alpha_c_s=times,
    beta_c_s=times,
    alpha_n_s=times,
    beta_n_s=times,
    alpha_r_s=times,
    beta_r_s=times,
    gamma=st.floats(1.0, 10.0),
)
spreads = st.lists(st.integers(1, 8), min_size=1, max_size=4).map(tuple)
noises = st.floats(0.0, 1e6)


@st.composite
def limits(draw):
    initial = draw(st.integers(1, 256))
    min_local = draw(st.integers(1, 16))
    return BatchLimits(
        initial=initial,
        largest=initial * draw(st.integers(1, 64)),
        min_local=min_local,
        max_local=min_local + draw(st.integers(0, 128)),
    )


def brute_force(step, spread, noise, allowed):
    """The highest goodput on the grid, one candidate at a time, straight from the rules."""
    gpus, best = sum(spread), 0.0
    lowest = max(allowed.initial, allowed.min_local * gpus)
    if lowest > allowed.largest:
        return 0.0
    for wanted in np.geomspace(lowest, allowed.largest, GRID_POINTS).tolist():
        each = wanted / gpus
        accumulation = math.ceil(each / allowed.max_local - SLACK) - 1
        if gpus == 1 and each > allowed.initial + SLACK:
            accumulation = max(accumulation, 1)
        local = math.ceil(each / (accumulation + 1) - SLACK)
        local = min(local, allowed.largest // (gpus * (accumulation + 1)))
        total = gpus * local * (accumulation + 1)
        if not allowed.min_local <= local <= allowed.max_local:
            continue
        full, compute = step.times(spread, np.array([float(local)]))
        throughput = total / (full[0] + accumulation * compute[0])
        best = max(best, throughput * (noise + allowed.initial) / (noise + total))
    return best


@given(step=steps, spread=spreads, noise=noises, allowed=limits())
def test_the_choice_equals_brute_force_over_the_grid(step, spread, noise, allowed):
    choice = choose_batch(step, spread, noise=noise, limits=allowed)
    assert (choice.goodput if choice else 0.0) == pytest.approx(brute_force(step, spread, noise, allowed), rel=1e-12)


@given(gpus=st.integers(1, 128), allowed=limits())
def test_every_candidate_is_within_the_limits(gpus, allowed):
    grid = batch_grid(allowed, gpus)
    assert (grid.total == gpus * grid.local * (grid.accumulation + 1)).all()
    assert (grid.total <= allowed.largest).all()
    assert (grid.total > allowed.initial - gpus * (grid.accumulation + 1)).all()  # rounding down, at most
    assert ((grid.local >= allowed.min_local) & (grid.local <= allowed.max_local)).all()
    assert (grid.accumulation >= 0).all()


@given(gpus=st.integers(1, 128), allowed=limits(), share=st.floats(0.0, 1.0))
def test_a_fixed_batch_fits_memory_and_stays_close_to_what_was_asked(gpus, allowed, share):
    batch = allowed.initial + int(share * (allowed.largest - allowed.initial))
    split = fixed_split(allowed, batch, gpus)
    for total, local, accumulation in zip(split.total, split.local, split.accumulation, strict=True):
        assert total == gpus * local * (accumulation + 1) <= allowed.largest
        assert 1 <= local <= allowed.max_local
        assert abs(total - batch) < gpus * (accumulation + 1) * 2


@given(noise=noises, initial=st.integers(1, 512), batches=st.lists(st.integers(1, 10**6), min_size=2))
def test_efficiency_is_one_at_the_initial_batch_and_falls_with_the_batch(noise, initial, batches):
    assert efficiency(noise, initial, initial) == 1.0
    larger = sorted(initial + batch for batch in batches)
    worth = [efficiency(noise, initial, batch) for batch in larger]
    assert all(0.0 < value < 1.0 + 1e-12 for value in worth)
    assert all(after <= before for before, after in pairwise(worth))
    assert efficiency(noise + 1.0, initial, larger[-1]) >= worth[-1]


@given(step=steps, spread=spreads, noise=noises, allowed=limits())
def test_more_memory_never_makes_a_shape_impossible(step, spread, noise, allowed):
    roomy = BatchLimits(
        initial=allowed.initial,
        largest=allowed.largest,
        min_local=allowed.min_local,
        max_local=allowed.max_local * 64,
    )
    before, after = (choose_batch(step, spread, noise=noise, limits=each) for each in (allowed, roomy))
    if before is not None:
        assert after is not None
