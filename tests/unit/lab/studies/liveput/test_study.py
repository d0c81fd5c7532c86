"""One hour of every model against the published figures, and that the study says so."""

from __future__ import annotations

import pytest

from sublet import plugins
from sublet.errors import MissingData
from sublet.perf.parcae import measured_job
from sublet_lab.studies.liveput import money
from sublet_lab.studies.liveput import study as liveput
from sublet_lab.studies.liveput.study import CHECKPOINT, GOAL, IDEAL, PREDICT, TRUTH, part_of, run_policies


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


def test_whole_traces_count_once_each_and_their_mean_has_an_interval(part):
    """Four of them; hours of one, and the same trace to the second, are no more traces."""
    by_name = run_policies(measured_job("resnet152"), part)
    others = {"liveput": by_name["oracle"], "greedy-live": by_name["greedy-live"], "parcae": by_name["parcae"]}
    names = ["bamboo-gcp", "bamboo-gcp, to the second", "skynomad-h100", "skypilot-v100-2023-08"]
    found = {model: {"hh": others, "full": by_name} for model in GOAL}
    elsewhere = {
        f"{model}, {name}": {"full": by_name if at else others} for model in GOAL for at, name in enumerate(names)
    }
    checks = {check.name: check for check in liveput._over_traces(found, elsewhere)}
    assert len(checks) == 2 * len(GOAL)
    over = [by["liveput"].samples / by["parcae"].samples for by in (by_name, others, by_name, by_name)]
    check = checks["bert: samples of liveput over parcae, mean of 4 whole traces"]
    assert check.ours == pytest.approx(sum(over) / 4)
    assert check.off > 0.0
    assert liveput._over_traces(found, {}) == []


def test_samples_per_dollar_are_told_by_hour_with_an_interval(part):
    job = measured_job("resnet152")
    times = [money._over_parcae(job, each.record) for each in (part, part_of("ll"))]
    assert times[0] > times[1] > 1.0
    (check,) = money._hour_checks({"resnet152": times})
    assert (check.ours, check.ok) == (pytest.approx(sum(times) / 2), False)
    assert check.off == pytest.approx(12.706205 * (times[0] - times[1]) / 2.0, rel=1e-6)
    assert money._hour_table(["hh", "ll"], {"resnet152": times}).rows[0][1:3] == [f"{each:.2f}" for each in times]


def test_the_study_is_registered():
    assert plugins.load("sublet.studies", "liveput") is liveput.STUDY
