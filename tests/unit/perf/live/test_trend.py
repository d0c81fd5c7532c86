"""Phases from the trend of the noise, against the integral over every sample; and what they are for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.plan import JobState
from sublet.domain.shape import Shape, packed
from sublet.errors import InvalidValue
from sublet.perf.live.rows import StepRow
from sublet.perf.live.speed import LiveSpeed, batch_steps
from sublet.perf.live.trend import MOST_GROWTH, noise_phases
from sublet.perf.preemption import NO_RECLAIMS
from sublet.planning.menu import menu_of
from sublet.planning.terms import Site
from sublet.planning.value_of_time import TimePrice
from sublet.policies.boa.policy import exact_width
from sublet.solve.phases import Phases, best_plans
from sublet.testing.values import a_job

INITIAL, BATCHES, PER_NODE = 64, batch_steps(64, 64, 4096), 8
WITHIN = 0.01  # what the few phases may be off by


def row(gpus, samples):
    """A micro-batch takes 5 ms and 0.5 ms a sample; an exchange 20 ms."""
    piece_s, wait_s = 0.005 + 0.0005 * samples, 0.02 if gpus > 1 else 0.0
    times = {"piece_s": piece_s, "wait_s": wait_s, "step_s": piece_s + wait_s}
    return StepRow(gpu="T4", gpus=gpus, nodes=1, samples=samples, error=0.01, **times)


ROWS = tuple(row(gpus, samples) for gpus in (1, 2, 4, 8) for samples in (8, 64, 512))


def live(noise, phases=()):
    return LiveSpeed(
        rows=ROWS, batches=BATCHES, initial=INITIAL, batch_now=INITIAL, noise=noise, phases=phases, unit=1e6
    )


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize(("growth", "at"), [(0.5, 0.0), (1.5, 0.3), (4.0, 0.1)])
def test_a_few_phases_take_as_long_as_noise_that_grows_with_every_sample(width, growth, at):
    """At a fixed width, with the batch that is best at each instant: brute force, in pieces of one noise each."""
    noise, spread, pieces = 100.0, packed(width, PER_NODE), 100
    speed = live(noise, noise_phases(noise, growth, at, 1.0))
    brute_s = 0.0
    for piece in range(pieces):
        here = (1.0 - at) * (piece + 0.5) / pieces
        then = live(noise * min(MOST_GROWTH, math.exp(growth * here)))
        brute_s += (1.0 - at) / pieces / then.rate("T4", spread, 0.0)
    assert speed.seconds("T4", spread, at, 1.0) == pytest.approx(brute_s, rel=WITHIN)
    if width == 8:
        assert live(noise).seconds("T4", spread, at, 1.0) > brute_s * (1.0 + WITHIN), "without phases it is far off"


@given(st.floats(1.0, 1e5), st.floats(0.0, 50.0), st.floats(0.0, 0.999))
def test_the_noise_of_phases_rises_up_to_the_cap_and_their_ends_to_the_goal(noise, growth, at):
    phases = noise_phases(noise, growth, at, 1.0)
    if not phases:
        assert growth * (1.0 - at) < math.log(1.25) + 1e-9
        return
    ends, noises = zip(*phases, strict=True)
    assert ends[-1] == 1.0
    assert list(ends) == sorted(set(ends))
    assert list(noises) == sorted(set(noises))
    assert noise < noises[0]
    assert noises[-1] <= noise * MOST_GROWTH * (1.0 + 1e-9)


@pytest.mark.parametrize("growth", [0.0, -3.0, math.nan, 0.1])
def test_a_noise_that_does_not_grow_or_hardly_makes_no_phases(growth):
    assert noise_phases(100.0, growth, 0.2, 1.0) == ()


def test_a_growth_that_nobody_can_believe_is_cut():
    assert noise_phases(100.0, math.inf, 0.2, 1.0) == noise_phases(100.0, 1e300, 0.2, 1.0)
    assert noise_phases(100.0, math.inf, 0.2, 1.0)[-1] == (1.0, pytest.approx(100.0 * MOST_GROWTH))


def test_phases_without_a_noise_are_refused():
    with pytest.raises(InvalidValue, match="noise"):
        live(None, ((1.0, 100.0),))


def test_a_shape_has_its_batch_in_the_first_phase_and_the_best_one_later():
    speed = live(100.0, noise_phases(100.0, 4.0, 0.0, 1.0))
    bound = speed.bound_to(Shape("p", 8, batch=64))
    assert bound.ends == speed.ends
    assert bound.rate("T4", (8,), 0.0) == speed.rate_at("T4", (8,), 64) < speed.rate("T4", (8,), 0.0)
    later = speed.ends[0]
    assert bound.rate("T4", (8,), later) == speed.rate("T4", (8,), later)


SITE = Site("T4x8:spot", "T4", PER_NODE, NO_RECLAIMS, 0.0, 8)


def test_the_widths_of_boa_grow_over_the_phases_as_the_best_plan_has_them():
    """`solve/phases` without restarts, on the times of the same menu; and a phase later, what `boa` gives it then."""
    speed = live(200.0, noise_phases(200.0, 4.0, 0.0, 1.0))
    job = a_job("a", work=1.0, speed=speed, max_gpus=8)
    menu, rent, value = menu_of(job, (SITE,)), 1.0, 4.0
    price = TimePrice(value, 0.0)
    starts = (0.0, *speed.ends[:-1])
    widths = [exact_width(JobState(job=job, seq=0, done=done), menu, price, rent, 0.0) for done in starts]
    time_EC = menu.hours(1.0)
    plans = best_plans(Phases.from_tables(time_EC[None], rent * menu.gpus_C[None]), value)
    assert widths == menu.gpus_C[np.asarray(plans.config_IE[0])].tolist()
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
