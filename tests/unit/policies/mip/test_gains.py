"""What each width is worth under each objective, beside the table of the documentation; and who waits for nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sublet.domain.budget import Limit
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Table
from sublet.planning.widths import runnable
from sublet.policies.mip.policy import Aim, Mip, gains
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

GPU, HORIZON_S = "T4", 60.0


def speeds(rng):
    """Of one phase, with holes; or of two, of which the second is as fast as there are GPUs."""
    rates = {gpus: float(rng.integers(0, 9)) for gpus in range(1, 5)}
    rates[int(rng.integers(1, 5))] = 2.0
    if rng.random() < 0.5:
        return Table(rates={GPU: rates})
    return Phased(ends=(100.0, 400.0), rates=lambda _, spread: (1.0, float(sum(spread))))


def by_the_table(state, gpus, done, aim, widths):
    job = state.job
    spread, stays = (1,) * gpus, state.shape is not None and state.shape.gpus == gpus
    pause_s, left = (0.0 if stays else job.restart_s), job.work - done

    def within(seconds):
        return job.speed.work(GPU, spread, done, max(seconds, 0.0)) - done

    match aim.objective:
        case "throughput":
            one = job.speed.rate(GPU, (1,), done) or job.speed.rate(GPU, (1,) * widths[0], done) / widths[0]
            gain = job.speed.rate(GPU, spread, done) / one
        case "time-left":
            gain = -job.speed.seconds(GPU, spread, done, job.work) - pause_s
        case "total":
            gain = min(left, within(HORIZON_S)) / job.work
        case "remaining":
            gain = min(1.0, within(HORIZON_S - pause_s) / left) if left else 1.0
    if stays and gain > -math.inf:
        gain += aim.stickiness * abs(gain)
    return job.weight * gain


@pytest.mark.parametrize("objective", ["remaining", "throughput", "total", "time-left"])
def test_a_width_is_worth_what_the_table_says(objective):
    rng, pool = np.random.default_rng(16), Kernel([an_offer("o", gpus=1, pool="p")]).snapshot().pools["p"]
    aim, several = Aim(objective=objective, horizon_s=HORIZON_S, stickiness=0.25), 0
    for _ in range(150):
        job = a_job(
            work=400.0, gpus=1, max_gpus=4, speed=speeds(rng), restart_s=float(rng.choice([0.0, 20.0, 90.0])),
            weight=float(rng.choice([0.5, 1.0, 3.0])),
        )  # fmt: skip
        held = int(rng.integers(0, 5))
        shape = {"shape": Shape("p", held), "gpus": held, "spread": (1,) * held, "phase": Phase.RUNNING} if held else {}
        done = float(rng.choice([0.0, 70.0, 390.0, 400.0]))
        state = JobState(job=job, seq=0, **shape)
        choices = runnable(state, pool, 4, done)
        found = gains(state, pool, choices, done, aim)
        widths = [choice.gpus for choice in choices]
        assert found == pytest.approx([by_the_table(state, gpus, done, aim, widths) for gpus in widths])
        several += len(found) > 1
    assert several > 50


def test_where_times_are_losses_who_does_not_fit_waits_whatever_widths_the_others_have():
    """No width of the one is one of the other."""
    driver = Driver([an_offer("o", gpus=1, pool="p")], limits={"o": Limit(max_nodes=2)})
    driver.submit(a_job("slim", work=50.0, gpus=1), a_job("wide", work=500.0, gpus=2, min_gpus=2))
    plan = Mip(objective="time-left").decide(driver.kernel.snapshot())
    assert len([shape for shape in plan.shapes.values() if shape]) == 1
