"""The gradient noise scale, on gradients whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.train.numerics.noise import ENOUGH, BatchRange, Noise, halves_due


def test_the_noise_scale_of_a_known_distribution_is_found():
    rng = np.random.default_rng(0)
    mean, spread, batch, workers = np.full(100, 0.3), 2.0, 64, 4
    noise = Noise()
    for _ in range(400):
        small = mean + spread / np.sqrt(batch / workers) * rng.standard_normal((workers, 100))
        noise.add(float((small**2).sum(1).mean()), workers / batch, float((small.mean(0) ** 2).sum()), batch)
    assert noise.scale == pytest.approx(spread**2 * 100 / (0.3**2 * 100), rel=0.25)


def found_off(seed, times, *, workers=4, batch=64):
    """By how much the scale is off that is found where the noise is so many times the batch."""
    rng, mean = np.random.default_rng(seed), np.full(100, 0.3)
    spread, noise = 0.3 * np.sqrt(times * batch), Noise()
    for _ in range(200):
        small = mean + spread / np.sqrt(batch / workers) * rng.standard_normal((workers, 100))
        noise.add(float((small**2).sum(1).mean()), workers / batch, float((small.mean(0) ** 2).sum()), batch)
    return abs(noise.scale / (times * batch) - 1.0)


@pytest.mark.parametrize(("times", "within_tenth"), [(0.1, 1.0), (1.0, 0.85), (3.0, 0.4)])
def test_by_many_draws_the_scale_is_within_a_tenth_up_to_the_batch_and_less_sure_beyond(times, within_tenth):
    off = np.array([found_off(seed, times) for seed in range(40)])
    assert (off <= 0.1).mean() >= within_tenth
    assert np.median(off) <= 0.1


def test_nothing_is_concluded_from_little():
    noise = Noise()
    noise.add(2.0, 0.5, 1.0, 4)
    assert noise.scale is None


def test_the_batch_grows_towards_the_noise_scale_by_at_most_twice():
    limits = BatchRange(initial=8, low=8, high=100)
    assert limits.grown(8, None) == 8
    assert limits.grown(8, 9.0) == 8  # not worth a change
    assert limits.grown(8, 12.0) == 12
    assert limits.grown(8, 1e9) == 16
    assert limits.grown(80, 1e9) == 100
    assert limits.grown(80, 10.0) == 80


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e9])
def test_the_gain_lies_between_one_and_the_ratio_of_batches(scale):
    limits = BatchRange(initial=8, low=8, high=1000)
    gains = [limits.gain(batch, scale) for batch in (8, 16, 64, 512)]
    assert gains[0] == 1.0
    assert gains == sorted(gains)
    assert all(1.0 <= gain <= batch / 8 for gain, batch in zip(gains, (8, 16, 64, 512), strict=True))


@pytest.mark.parametrize("steps", [10, 199, 200, 3_999, 4_000, 20_000])
def test_of_all_steps_at_most_one_in_two_hundred_is_taken_in_halves(steps):
    halved = []
    for step in range(steps):
        if halves_due(step, len(halved), steps):
            halved.append(step)
    assert len(halved) <= steps / 200
    if steps >= 4_000:
        assert len([step for step in halved if step < steps / 50]) >= ENOUGH  # and it is known early where it can be


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_step_whose_gradients_overflowed_is_no_measurement(bad):
    noise = Noise()
    for _ in range(2 * ENOUGH):
        noise.add(2.0, 0.5, 1.5, 4)
    before = noise.scale
    noise.add(bad, 0.5, 1.0, 4)
    noise.add(2.0, 0.5, bad, 4)
    assert noise.scale == before
    assert math.isfinite(noise.growth)


def test_a_signal_that_is_hardly_there_gives_no_scale_without_end():
    assert Noise(signal=5e-324, scatter=1e10, count=ENOUGH).scale is None
