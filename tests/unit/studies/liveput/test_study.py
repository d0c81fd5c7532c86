"""One hour of every model against the published figures, and that the study says so."""

from __future__ import annotations

import pytest

from sublet import plugins
from sublet.errors import MissingData
from sublet.perf.spot_models import measured_job
from sublet.studies.liveput import study as liveput
from sublet.studies.liveput.study import CHECKPOINT, GOAL, IDEAL, PREDICT, TRUTH, part_of, run_policies


@pytest.fixture(scope="module")
def part():
    try:
        return part_of("hh")
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])


@pytest.mark.parametrize("model", GOAL)
def test_an_hour_is_as_published_and_ours_is_near_the_oracle(part, model):
    by_name = run_policies(measured_job(model), part)
    assert round(by_name["ideal"].samples) == IDEAL[model]["hh"]
    assert round(by_name["checkpoint-restart"].samples) == CHECKPOINT[model]["hh"]
    assert by_name["parcae-truth"].samples == pytest.approx(TRUTH[model]["hh"], rel=1e-3)
    assert by_name["parcae"].samples == pytest.approx(PREDICT[model]["hh"], rel=0.02)
    ours, best = by_name["liveput"].samples, by_name["oracle"].samples
    assert ours >= GOAL[model] / 100 * best
    assert ours >= max(by_name["greedy-live"].samples, by_name["parcae"].samples)


def test_the_largest_model_rides_through_too_few_instances():
    job, low = measured_job("gpt-6.7b"), part_of("lh")
    done = run_policies(job, low)["liveput"]
    assert done.suspended_s > 0
    assert done.samples > 0


def test_the_study_is_registered():
    assert plugins.load("sublet.studies", "liveput") is liveput.STUDY
