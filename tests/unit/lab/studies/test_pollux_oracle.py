"""Our simulator gives the completion times that the artifact of Pollux published, job by job."""

from __future__ import annotations

import pytest

from sublet.errors import MissingData
from sublet.sim.simulator import simulate
from sublet_lab.studies import pollux_oracle as oracle
from sublet_lab.studies.pollux_oracle import Comparison, compare, jobs_of, published_times


@pytest.fixture(scope="module")
def published():
    try:
        return published_times()
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])


@pytest.mark.outside_data
def test_all_published_times_are_read(published):
    runs = [key for key in published if key[2] in "1234"]
    assert len(runs) == 2 * 4 * 4
    assert sum(len(published[key]) for key in runs) == 6400
    assert published["tiresias", "0.5", "1"]["deepspeech2-0"] == 4182


@pytest.mark.outside_data
@pytest.mark.parametrize(
    "key",
    [
        ("tiresias", "1.0", "1"),
        ("tiresias", "2.0", "3"),  # here the order of the second queue decides: by arrival, five jobs would differ
        ("optimus", "0.5", "2"),
        ("optimus", "1.0", "1"),
    ],
)
def test_every_job_ends_at_the_published_second(published, key):
    run = compare(key, published[key])
    assert len(run.ours_s) == len(published[key])
    assert run.off_s == {}
    assert run.mean_error == 0.0


@pytest.mark.parametrize(("policy", "mean_s"), [("tiresias", 3469.69375), ("optimus", 5301.875)])
def test_the_mean_of_a_workload_whose_jobs_were_not_looked_at_is_the_published_one(policy, mean_s):
    run = compare((policy, "1.0", "6"), dict.fromkeys((job.id for job in jobs_of("1.0", "6")), 1))
    assert sum(run.ours_s.values()) / 160 == mean_s


def test_the_laws_of_the_kernel_hold_all_the_way():
    run = simulate(jobs_of("0.5", "3")[:30], oracle.POLICIES["optimus"], oracle.CLOUD, checked=True)
    assert run.unfinished == ()


def test_a_run_that_differs_is_told_job_by_job_and_misses_its_checks():
    run = Comparison(
        key=("tiresias", "1.0", "9"),
        ours_s={"a": 100, "b": 260, "c": 41, "d": 7},
        published_s={"a": 100, "b": 200, "c": 40, "d": 107},
        submit_s=dict.fromkeys("abcd", 0.0),
        cpu_s=0.01,
    )
    assert run.off_s == {"b": 60, "c": 1, "d": -100}
    rows = oracle._differing([run]).rows
    assert [row[3] for row in rows] == ["d", "c", "b"]
    assert ["first" in row[4] for row in rows] == [True, False, False]
    missed = [check.name for check in oracle._checks([run]) if not check.ok]
    assert missed == [
        "completion times that are equal",
        "completion times within 60 s",
        "worst error of a workload's mean",
    ]
    assert oracle._by_run([run]).rows[0][3:6] == ["4", "1", "3"]
