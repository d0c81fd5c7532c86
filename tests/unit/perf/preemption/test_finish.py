"""The finish time as a distribution, beside runs that are told hit by hit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.job import Job
from sublet.domain.shape import Shape
from sublet.perf.preemption import Finish, Reclaims, Toll, finish_of, toll_of
from sublet.testing.values import a_job

HOUR_S = 3600.0


@dataclass(frozen=True)
class Story:
    """A job on four nodes, one GPU each."""

    per_h: float
    job: Job
    notice_s: float = 0.0
    boot_s: float = 300.0
    steady: int = 0

    def toll(self) -> Toll:
        seen = Reclaims(per_h=self.per_h, notice_s=self.notice_s, boot_s=self.boot_s)
        return toll_of(seen, self.job, "T4", 1, [Shape("p", 4, steady=self.steady)])


def ended_s(story: Story, work_s: float, rng: np.random.Generator) -> float:
    """One run. Its survivors keep the state, or all is redone from the last checkpoint; losses leave three of four."""
    job, hits = story.job, (4 - story.steady) * story.per_h / HOUR_S
    boot_s, every_s = max(0.0, story.boot_s - story.notice_s), 0.0 if story.notice_s else job.checkpoint_every_s
    now_s = done = saved = 0.0
    while True:
        hit_s = rng.exponential(1.0 / hits)
        if done + hit_s >= work_s:
            return now_s + work_s - done
        now_s += hit_s
        reached = done + hit_s
        if job.survives or not every_s:
            done = saved = reached
        else:
            done = saved = saved + (reached - saved) // every_s * every_s
        while True:  # a recovery, until one is not interrupted
            hit_s, pause_s = rng.exponential(1.0 / hits), boot_s + job.restart_s
            if job.survives:  # three of four train until the fourth is there
                done = saved = done + 0.75 * max(0.0, min(hit_s, boot_s) - job.restart_s)
            now_s += min(hit_s, pause_s)
            if hit_s >= pause_s:
                break


plain = a_job(restart_s=60.0, checkpoint_every_s=900.0, max_gpus=4, gpus=4)
sturdy = a_job(restart_s=60.0, checkpoint_every_s=900.0, survives=True, max_gpus=4, gpus=4)
STORIES = {
    "rare": Story(0.02, plain),
    "some": Story(0.2, plain),
    "often": Story(1.0, plain),
    "noticed": Story(0.5, plain, notice_s=120.0),
    "survivors": Story(0.5, sturdy),
    "a core": Story(0.5, sturdy, steady=1),
}


@pytest.mark.parametrize("hours", [1.0, 8.0])
@pytest.mark.parametrize("name", STORIES)
def test_quantiles_are_those_of_many_runs(name, hours):
    story, rng = STORIES[name], np.random.default_rng(11)
    runs = np.array([ended_s(story, hours * HOUR_S, rng) for _ in range(1500)])
    found = finish_of(hours * HOUR_S, story.toll())
    assert found.mean_s == pytest.approx(runs.mean(), rel=0.03)
    for share in (0.1, 0.5, 0.9):
        assert found.quantile_s(share) == pytest.approx(np.quantile(runs, share), rel=0.05), share
    # The label is kept: of all runs, so many have ended by then.
    assert (runs <= found.quantile_s(0.9) * 1.001).mean() == pytest.approx(0.9, abs=0.05)


def chance_by(found, at_s):
    """That it has ended by then, of a mixture of lognormal times."""
    return sum(weight * NormalDist(mid, wide).cdf(math.log(at_s)) for weight, mid, wide in found.terms)


@pytest.mark.parametrize("name", STORIES)
def test_the_variance_is_that_of_long_runs(name):
    story, rng, work_s = STORIES[name], np.random.default_rng(5), 40.0 * HOUR_S
    runs = np.array([ended_s(story, work_s, rng) for _ in range(400)])
    assert math.sqrt(story.toll().varies_C[0] * work_s) == pytest.approx(runs.std(), rel=0.15)


def test_the_chance_that_nothing_happens_is_exact():
    story = Story(0.02, plain)
    found = finish_of(HOUR_S, story.toll())
    assert found.terms[0][0] == pytest.approx(math.exp(-0.08), rel=1e-9)
    assert chance_by(found, HOUR_S * 1.0001) == pytest.approx(math.exp(-0.08), abs=1e-3)
    assert found.quantile_s(0.5) == pytest.approx(HOUR_S, rel=1e-6)


@given(st.floats(0.001, 3.0), st.floats(60.0, 1e7), st.floats(0.0, 0.3), st.booleans())
def test_quantiles_rise_and_the_mean_is_exact(per_h, work_s, spread, survives):
    job = sturdy if survives else plain
    toll = Story(per_h, job).toll()
    found = finish_of(work_s, toll, spread=spread)
    p01, p10, p50, p90, p99 = (found.quantile_s(share) for share in (0.01, 0.1, 0.5, 0.9, 0.99))
    assert p01 <= p10 <= p50 <= p90 <= p99
    assert chance_by(found, p90) >= 0.9
    assert chance_by(found, p90 * (1 - 1e-6)) <= 0.9
    mean_s = sum(weight * math.exp(mid + 0.5 * (wide**2 - spread**2)) for weight, mid, wide in found.terms)
    assert mean_s == pytest.approx(found.mean_s, rel=1e-9)
    assert mean_s == pytest.approx(work_s / toll.kept_C[0], rel=1e-9)


def test_without_reclaims_only_speed_varies():
    found = finish_of(1000.0, Toll.nothing(1), spread=0.2)
    assert found.quantile_s(0.9) == pytest.approx(1000.0 * math.exp(0.2 * 1.2815515), rel=1e-6)
    assert finish_of(1000.0, Toll.nothing(1)).quantile_s(0.01) == pytest.approx(1000.0, rel=1e-6)


def test_a_job_that_never_ends_has_no_end_and_one_that_is_done_has_ended():
    never = Story(0.5, a_job(restart_s=60.0, max_gpus=4, gpus=4)).toll()  # it writes no checkpoint
    assert finish_of(3600.0, never) is None
    assert finish_of(math.inf, Toll.nothing(1)) is None
    assert finish_of(0.0, Toll.nothing(1)).quantile_s(0.9) == 0.0


@pytest.mark.parametrize("wide", [1e-9, 0.01, 0.5])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_so_many_runs_have_ended_by_their_quantile(wide, share):
    terms = [(weight, math.log(100.0 + 40.0 * n**2), wide) for n, weight in enumerate((0.45, 0.3, 0.2, 0.05))]
    found = Finish(0.0, tuple(terms))
    at_s = found.quantile_s(share)
    assert chance_by(found, at_s * (1 + 1e-6)) >= share - 1e-9
    assert chance_by(found, at_s * (1 - 1e-6)) <= share + 1e-9
