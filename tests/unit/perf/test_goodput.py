from __future__ import annotations

import numpy as np
import pytest

from sublet.errors import InvalidValue
from sublet.perf.goodput import BatchLimits, Goodput, NoiseCurve, batch_grid, choose_batch, efficiency, fixed_split
from sublet.perf.steptime import RingStep

STEP = RingStep(alpha_s=0.05, beta_s=0.002, gradient_bytes=4e8, intra_bytes_per_s=1e10, inter_bytes_per_s=2e9)
LIMITS = BatchLimits(initial=32, largest=1024, min_local=4, max_local=64)


def test_a_sample_is_worth_one_at_the_initial_batch():
    assert efficiency(500.0, 32, 32) == 1.0
    assert efficiency(0.0, 32, 64) == 0.5  # no noise: a larger batch buys nothing
    assert efficiency(1e12, 32, 1024) == pytest.approx(1.0)


def test_noisier_gradients_want_larger_batches():
    batches = [choose_batch(STEP, (4, 4), noise=noise, limits=LIMITS).global_batch for noise in (0, 100, 1e4, 1e6)]
    assert batches == sorted(batches)
    assert batches[-1] == 1024
    assert batches[0] < 64


def test_a_choice_adds_up():
    choice = choose_batch(STEP, (4, 2), noise=300.0, limits=LIMITS)
    assert choice.global_batch == 6 * choice.local_batch * (choice.accumulation + 1)
    assert choice.goodput == choice.throughput * choice.efficiency
    assert LIMITS.initial <= choice.global_batch <= LIMITS.largest


def test_one_gpu_accumulates_for_any_batch_above_the_initial_one():
    grid = batch_grid(LIMITS, 1)
    assert grid.accumulation[0] == 0.0
    assert (grid.accumulation[1:] >= 1.0).all()


def test_gpus_that_cannot_all_have_work_have_no_candidates():
    assert len(batch_grid(LIMITS, 256).total) > 0
    assert len(batch_grid(LIMITS, 257).total) == 0
    assert choose_batch(STEP, (257,), noise=1.0, limits=LIMITS) is None


@pytest.mark.parametrize(
    ("batch", "gpus", "local", "accumulation"),
    [
        (32, 1, 32, 0),  # the initial batch on one GPU: one micro-batch
        (64, 1, 32, 1),  # above it: at least two
        (256, 1, 64, 3),  # as many as memory asks for
        (256, 4, 64, 0),
        (256, 3, 43, 1),  # 86 each, two micro-batches of 43: 258 samples are run
        (1024, 3, 56, 5),  # 342 each, 6 x 57 would be 1026, above the largest: 56
        (1024, 16, 64, 0),
    ],
)
def test_a_fixed_batch_is_split_by_the_published_rule(batch, gpus, local, accumulation):
    split = fixed_split(LIMITS, batch, gpus)
    assert (split.local.tolist(), split.accumulation.tolist()) == ([local], [accumulation])
    assert split.total.tolist() == [gpus * local * (accumulation + 1)]


def test_a_fixed_batch_never_exceeds_the_largest_nor_gives_a_gpu_nothing():
    assert fixed_split(LIMITS, 1024, 1025).total.tolist() == []


def test_goodput_as_a_speed_has_a_rate_for_each_phase():
    curve = NoiseCurve(initial=32, ends=(1e4, 5e4, 1e5), noise=(10.0, 300.0, 5000.0))
    model = Goodput(step={"A10": STEP}, limits={"A10": LIMITS}, efficiency=curve)
    speed = model.speed()
    rates = [speed.rate("A10", (4, 4), done) for done in (0.0, 2e4, 6e4)]
    assert rates == sorted(rates)
    for phase, noise in enumerate(curve.noise):
        choice = choose_batch(STEP, (4, 4), noise=noise, limits=LIMITS)
        assert model.choice("A10", (4, 4), phase) == choice
        assert rates[phase] == pytest.approx(choice.goodput, rel=1e-12)


def test_late_phases_scale_better_than_early_ones():
    curve = NoiseCurve(initial=32, ends=(1e4, 1e5), noise=(10.0, 5000.0))
    speed = Goodput(step={"A10": STEP}, limits={"A10": LIMITS}, efficiency=curve).speed()
    early, late = (speed.rate("A10", (8,), done) / speed.rate("A10", (1,), done) for done in (0.0, 5e4))
    assert late > 1.5 * early


def test_what_cannot_run_has_rate_0():
    curve = NoiseCurve(initial=32, ends=(1.0,), noise=(10.0,))
    model = Goodput(step={"A10": STEP}, limits={"A10": LIMITS}, efficiency=curve)
    assert model.rates("H100", (1,)) == [0.0]
    assert model.rates("A10", ()) == [0.0]
    assert model.choice("H100", (1,), 0) is None
    assert model.choice("A10", (), 0) is None


def test_a_constant_batch_gives_one_efficiency_at_any_width():
    curve = NoiseCurve(initial=32, ends=(1.0,), noise=(96.0,))
    model = Goodput(step={"A10": STEP}, limits={"A10": LIMITS}, efficiency=curve, batch=256)
    worth = {model.choice("A10", (gpus,), 0).efficiency for gpus in (1, 2, 4, 8)}
    assert worth == {(96 + 32) / (96 + 256)}


def test_nonsense_is_refused():
    with pytest.raises(InvalidValue, match="largest"):
        BatchLimits(initial=32, largest=16, max_local=8)
    with pytest.raises(InvalidValue, match="max_local"):
        BatchLimits(initial=32, largest=64, min_local=8, max_local=4)
    with pytest.raises(InvalidValue, match="noise"):
        NoiseCurve(initial=32, ends=(1.0, 2.0), noise=(1.0,))
    with pytest.raises(InvalidValue, match="noise"):
        NoiseCurve(initial=32, ends=(1.0,), noise=(float(np.nan),))
    with pytest.raises(InvalidValue, match="limits"):
        Goodput(step={"T4": STEP}, limits={}, efficiency=NoiseCurve(initial=1, ends=(1.0,), noise=(1.0,)))
