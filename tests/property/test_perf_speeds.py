"""What holds for every speed: time and progress are inverse, rates are not negative, more time is more progress."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sublet.domain.shape import packed
from sublet.perf.goodput import BatchLimits, Goodput, NoiseCurve
from sublet.perf.measured import MODELS, measured_goodput
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear, PowerLaw, Table
from sublet.perf.steptime import FixedBatch, PolluxStep, RingStep

RING = RingStep(
    alpha_s=0.1, beta_s=0.01, gradient_bytes=1e9, intra_bytes_per_s=1e10, inter_bytes_per_s=1e9, inter_latency_s=1e-4
)
POLLUX = PolluxStep(alpha_c_s=0.1, beta_c_s=0.01, alpha_n_s=0.5, beta_n_s=0.02, alpha_r_s=0.2, beta_r_s=0.01, gamma=2.0)

fractions = st.floats(0.0, 1.0)
spreads = st.lists(st.integers(1, 8), min_size=1, max_size=6).map(tuple)
kinds = st.sampled_from(["T4", "A100", "H100"])
tables = st.dictionaries(
    kinds, st.dictionaries(st.integers(1, 48), st.floats(0.0, 1e6), min_size=1, max_size=6), min_size=1
)


@st.composite
def phased(draw):
    lengths = draw(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=8))
    ends = tuple(sum(lengths[: at + 1]) for at in range(len(lengths)))
    rates = draw(st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e4)), min_size=len(ends), max_size=len(ends)))
    return Phased(ends=ends, rates=lambda gpu, spread: [rate * sum(spread) for rate in rates])


@st.composite
def noisy(draw):
    noise = draw(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=4))
    limits = BatchLimits(initial=32, largest=draw(st.integers(32, 4096)), max_local=draw(st.integers(4, 128)))
    ends = tuple(1e4 * (at + 1) for at in range(len(noise)))
    curve = NoiseCurve(initial=32, ends=ends, noise=tuple(noise))
    return Goodput(step={"T4": RING, "A100": POLLUX}, limits={"T4": limits, "A100": limits}, efficiency=curve).speed()


speeds = st.one_of(
    st.builds(Linear),
    st.builds(Amdahl, parallel=fractions),
    st.builds(PowerLaw, exponent=fractions),
    st.builds(Table, rates=tables),
    st.builds(
        FixedBatch,
        step=st.just({"T4": RING, "A100": POLLUX}),
        max_local=st.fixed_dictionaries({"T4": st.integers(1, 64), "A100": st.integers(1, 64)}),
        batch=st.integers(1, 512),
    ),
    phased(),
    noisy(),
    st.sampled_from(MODELS).map(measured_goodput),
)


@given(speed=speeds, gpu=kinds, spread=spreads, done=st.floats(0.0, 5e4), more=st.floats(0.0, 5e4))
def test_work_is_the_inverse_of_seconds(speed, gpu, spread, done, more):
    goal = done + more
    seconds = speed.seconds(gpu, spread, done, goal)
    assert seconds >= 0.0
    if math.isfinite(seconds):
        assert speed.work(gpu, spread, done, seconds) == pytest.approx(goal, rel=1e-9, abs=1e-6)
    else:
        assert speed.work(gpu, spread, done, 1e12) < goal


@given(speed=speeds, gpu=kinds, spread=spreads, done=st.floats(0.0, 5e4), seconds=st.floats(0.0, 1e5))
def test_seconds_is_the_inverse_of_work(speed, gpu, spread, done, seconds):
    reached = speed.work(gpu, spread, done, seconds)
    assert reached >= done
    rate = speed.rate(gpu, spread, done)
    assume(rate > 0 and speed.rate(gpu, spread, reached) > 0)
    back = speed.seconds(gpu, spread, done, reached)
    # progress is stored in floating point: one unit in the last place of it is this much time
    slack = 4 * math.ulp(reached) / min(rate, speed.rate(gpu, spread, reached))
    assert back == pytest.approx(seconds, rel=1e-9, abs=1e-6 + slack)


@given(speed=speeds, gpu=kinds, spread=spreads, done=st.floats(0.0, 1e6))
def test_rates_are_finite_and_never_negative(speed, gpu, spread, done):
    rate = speed.rate(gpu, spread, done)
    assert 0.0 <= rate < math.inf
    assert (speed.seconds(gpu, spread, done, done + 1.0) < math.inf) <= (rate > 0)


@given(speed=speeds, gpu=kinds, spread=spreads, done=st.floats(0.0, 5e4), times=st.lists(st.floats(0.0, 1e5)))
def test_more_time_is_never_less_progress(speed, gpu, spread, done, times):
    reached = [speed.work(gpu, spread, done, seconds) for seconds in sorted(times)]
    assert all(after >= before * (1 - 1e-12) for before, after in pairwise(reached))


@given(
    speed=speeds,
    gpu=kinds,
    spread=spreads,
    done=st.floats(0.0, 5e4),
    first=st.floats(0.0, 1e4),
    then=st.floats(0.0, 1e4),
)
def test_a_pause_to_look_changes_nothing(speed, gpu, spread, done, first, then):
    halfway = speed.work(gpu, spread, done, first)
    assert speed.work(gpu, spread, halfway, then) == pytest.approx(
        speed.work(gpu, spread, done, first + then), rel=1e-9, abs=1e-6
    )


@given(gpus=st.integers(1, 64), parallel=fractions, exponent=fractions)
def test_analytic_speedups_lie_between_one_and_the_number_of_gpus(gpus, parallel, exponent):
    for speed in (Linear(), Amdahl(parallel=parallel), PowerLaw(exponent=exponent)):
        assert 1.0 - 1e-9 <= speed.rate("T4", packed(gpus, 8), 0.0) <= gpus * (1 + 1e-9)
