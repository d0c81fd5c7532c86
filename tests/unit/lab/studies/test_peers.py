"""The peers' own clusters, and whether the peers are as good here as at home."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from sublet.domain.plan import JobState, Phase
from sublet.errors import MissingData
from sublet.testing.values import a_job
from sublet_lab.rivals.max_speedup import MaxSpeedup
from sublet_lab.studies import peers
from sublet_lab.studies.peers import homogeneous_cluster, measured, mixed_cluster, pollux_as_published, sia_as_published


def part(setting, jobs):
    return replace(setting, jobs=setting.jobs[:jobs])


@pytest.fixture(scope="module")
def mixed():
    try:
        return mixed_cluster()
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])


@pytest.fixture(scope="module")
def homogeneous():
    try:
        return homogeneous_cluster()
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])


def gpus(setting):
    return {o.gpu: o.gpus_per_node * setting.cloud.limits[o.id].max_nodes for o in setting.cloud.offers}


@pytest.mark.outside_data
def test_both_clusters_have_64_gpus(homogeneous, mixed):
    assert gpus(homogeneous) == {"T4": 64}
    assert gpus(mixed) == {"T4": 24, "A100": 16, "RTX-2080Ti": 24}
    assert len(homogeneous.jobs) == len(mixed.jobs) == 160
    assert set(mixed.batch) == {job.id for job in mixed.jobs}


def test_jobs_choose_their_batch_unless_told_otherwise(homogeneous):
    rigid = homogeneous_cluster(adaptive=False)
    for free, fixed in zip(homogeneous.jobs, rigid.jobs, strict=True):
        assert free.speed.rate("T4", (4,), 0.0) >= fixed.speed.rate("T4", (4,), 0.0) * (1 - 1e-9)


def test_pollux_is_as_good_as_at_home_on_its_first_workload(homogeneous):
    ours = measured(homogeneous, "pollux", pollux_as_published())
    assert ours.unfinished == 0
    assert 3600 * ours.mean_h == pytest.approx(peers.POLLUX_MEAN_S["1"], rel=0.1)


def test_gpu_hours_are_counted_as_the_peers_count_them():
    rigid = homogeneous_cluster(adaptive=False)
    ours = measured(rigid, "tiresias", peers.pollux_oracle.POLICIES["tiresias"])
    assert round(ours.gpu_hours, 1) == 1264.5  # as measured of the artifact of Pollux, like the next three
    assert round(ours.p99_h, 2) == 13.37
    assert round(ours.makespan_h, 1) == 23.2
    assert round(ours.restarts, 2) == 0.19


@pytest.mark.outside_data
def test_any_policy_can_be_run_on_a_setting(mixed):
    for name, policy in (("sia", sia_as_published(mixed)), ("max-speedup", MaxSpeedup())):
        ours = measured(part(mixed, 12), name, policy)
        assert (ours.jobs, ours.unfinished) == (12, 0)
        assert 0 < ours.mean_h < ours.p99_h <= ours.makespan_h
        assert 0 < ours.decision_ms <= ours.worst_decision_ms


@pytest.mark.outside_data
def test_sia_learns_the_same_again(mixed):
    first, again = (measured(part(mixed, 12), "sia", sia_as_published(mixed)) for _ in range(2))
    assert (first.mean_h, first.gpu_hours, first.restarts) == (again.mean_h, again.gpu_hours, again.restarts)


@pytest.mark.outside_data
def test_a_check_that_is_missed_says_so(mixed, monkeypatch):
    monkeypatch.setattr(peers, "mixed_cluster", lambda _trace: part(mixed, 4))
    found = peers.sia_fair(True, lambda _what: None)
    assert not all(check.ok for check in found.checks)
    assert [row[1] for row in found.tables[0].rows] == ["sia, published", "sia"]


def test_what_was_published_of_four_workloads_is_near_that_of_all():
    assert fmean(peers.POLLUX_MEAN_S.values()) == pytest.approx(peers.POLLUX_MEAN_OF_EIGHT_S, rel=0.1)


@pytest.mark.parametrize(("model", "assumed_s"), [("cifar10", 30.0), ("yolov3", 45.0), ("imagenet", 77.0)])
def test_sia_reckons_with_the_pauses_that_its_planner_assumes(model, assumed_s):
    """Not with those that its simulator charges, here 77 s; after 300 s and one move so far."""
    setting = peers.Setting(name="none", jobs=(), cloud=peers.pollux_oracle.CLOUD, batch={})
    job = a_job("a", model=model, restart_s=77.0)
    state = JobState(job=job, seq=0, phase=Phase.RUNNING, gpus=1, stints=((0.0, 10.0, 1),), as_of_s=0.0)
    found = sia_as_published(setting).policy.discount(state, 300.0)
    assert found == pytest.approx((300.0 - assumed_s) / (300.0 + assumed_s))
