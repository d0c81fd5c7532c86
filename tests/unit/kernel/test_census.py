"""The census of jobs: exact while they are few, and never far behind."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.demand import KEPT, Demand, Ended, kind_of
from sublet.domain.events import JobCancelled, JobFailed, JobFinished
from sublet.kernel.census import Census
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.perf.speedup import Amdahl, Linear
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

LAG = 1 / 64
kinds = st.sampled_from([{"model": "a"}, {"model": "b"}, {"speed": Amdahl(parallel=0.5)}, {"weight": 2.0}])
jobs = st.lists(
    st.tuples(kinds, st.sampled_from([1.0, 7.0, 100.0]), st.sampled_from([0.0, 1.0, 3600.0])), min_size=1, max_size=300
)


def arrive(census, drawn):
    """Note them one by one; yields the time, and the jobs so far, after each."""
    now_s, so_far = 500.0, []
    for number, (facts, work, wait_s) in enumerate(drawn):
        now_s += wait_s
        so_far.append(a_job(f"j{number}", submit_s=now_s, work=work, **facts))
        census.note(so_far[-1], now_s)
        yield now_s, so_far


@given(jobs)
def test_the_census_is_a_true_count_of_nearly_all_jobs_at_every_moment(drawn):
    census = Census()
    for now_s, so_far in arrive(census, drawn):
        counted = round(sum(kind.jobs for kind in census.demand.kinds.values()))
        assert len(so_far) * (1 - LAG) - 1 < counted <= len(so_far)
        true = Demand.from_jobs(so_far[:counted], (so_far[counted - 1].submit_s - 500.0) / 3600)
        assert {key: kind.jobs for key, kind in census.demand.kinds.items()} == {
            key: kind.jobs for key, kind in true.kinds.items()
        }
        assert now_s >= 500.0
    for key, kind in census.demand.kinds.items():
        assert kind_of(kind.like) == key
        assert kind.work == pytest.approx(true.kinds[key].work)


@given(jobs.filter(lambda drawn: len(drawn) <= 64))
def test_the_first_jobs_are_counted_at_once_and_their_hours_begin_with_the_first(drawn):
    census = Census()
    for _, so_far in arrive(census, drawn):
        counted = Counter(map(kind_of, so_far))
        assert {key: kind.jobs for key, kind in census.demand.kinds.items()} == counted
    assert census.demand.hours == pytest.approx((so_far[-1].submit_s - so_far[0].submit_s) / 3600)


def test_what_follows_from_the_count_is_worked_out_seldom():
    """A new Demand, by which plans are kept, is made once for every sixty-fourth part that is added."""
    census = Census()
    made = []
    for number in range(20_000):
        census.note(a_job(f"j{number}", work=1.0), float(number))
        if not made or census.demand is not made[-1]:
            made.append(census.demand)
    assert len(made) < 64 + 64 * 6  # 64 to 20,000 is a factor of 313, and 313 = (1 + 1/64) ** 370


def test_jobs_that_have_ended_still_count_for_what_is_to_be_expected():
    driver = Driver([an_offer("o")])
    driver.submit(a_job("a", work=3.0), a_job("b", work=5.0))
    driver.tell(JobFinished(10.0, "a"))
    driver.tell(JobCancelled(20.0, "b"))
    (kind,) = driver.kernel.snapshot().arrived.kinds.values()
    assert (kind.jobs, kind.work) == (2, 4.0)


def test_before_the_first_job_nothing_is_known():
    seen = Driver([an_offer("o")]).kernel.snapshot()
    assert seen.arrived.kinds == {}
    assert seen.arrived.hours == 0.0
    assert seen.expected is None


@pytest.mark.parametrize("fields", [{"work": 9.0}, {"submit_s": 9.0}, {"gpus": 2}, {"deadline_s": 9.0}, {"group": "g"}])
def test_size_time_and_request_make_no_other_kind(fields):
    plain = {"speed": Linear(), "max_gpus": 4}
    assert kind_of(a_job(**{**plain, **fields})) == kind_of(a_job("z", **plain))


@pytest.mark.parametrize(
    "fields", [{"weight": 2.0}, {"model": "m"}, {"max_gpus": 5}, {"restart_s": 1.0}, {"speed": Amdahl(parallel=0.1)}]
)
def test_whatever_changes_the_choice_of_a_shape_makes_another_kind(fields):
    plain = {"speed": Linear(), "max_gpus": 4}
    assert kind_of(a_job(**{**plain, **fields})) != kind_of(a_job("z", **plain))


def test_what_is_learned_of_sizes_comes_from_jobs_that_are_done_alone():
    driver = Driver([an_offer("o", pool="p", gpus=4)])
    driver.submit(*(a_job(name, work=200.0, model="m", gpus=2) for name in ("done", "cancelled", "failed")))
    driver.settle(Equal())
    driver.tell(JobFinished(3600.0, "done"))
    driver.tell(JobCancelled(3600.0, "cancelled"))
    driver.tell(JobFailed(3600.0, "failed", "x"))
    ended = driver.kernel.snapshot().ended
    held_gpu_s = ended.jobs[0].gpu_h * 3600.0
    assert [(each.group, each.work) for each in ended.jobs] == [("m", 200.0)]
    assert 0.0 < held_gpu_s <= 2 * 3600.0
    again = kernel_from_snapshot(json.loads(json.dumps(driver.kernel.facts())))
    assert again.snapshot().ended.jobs == ended.jobs


def test_only_the_newest_are_remembered_and_jobs_without_an_end_tell_nothing():
    ended = Ended()
    for work in range(1, KEPT + 3):
        ended = ended.with_one_more(a_job(work=float(work), group="g"), gpu_h=work / 2)
    assert ended.with_one_more(a_job(work=math.inf), gpu_h=1.0) is ended
    assert ended.work_by_group == {"g": tuple(float(work) for work in range(3, KEPT + 3))}
    assert ended.gpu_hours_from(2) == pytest.approx((KEPT + 2) / 2 + (KEPT + 1) / 2)


def test_kinds_that_cannot_be_told_apart_any_more_are_one_with_their_work_added_up():
    """Two of 10 and three of 20: five of 16. A third kind is told to nobody yet."""
    census = Census()
    for number, (model, work) in enumerate([("a", 10.0)] * 2 + [("b", 20.0)] * 3):
        census.note(a_job(f"j{number}", model=model, work=work), 3600.0 * (1 + number))
    facts = json.loads(json.dumps(census.facts()))
    facts["kinds"].append(facts["kinds"][0])
    facts["seen"].append(None)
    twin = Census()
    twin.restore(facts, lambda text: a_job(text["id"], model="any", work=float(text["work"])))
    (arrivals,) = twin.demand.kinds.values()
    assert (arrivals.jobs, arrivals.work, arrivals.like.id) == (5, 16.0, "j0")
    assert twin.demand.hours == census.demand.hours == 4.0
    twin.note(a_job("new", model="any", work=100.0), 3600.0 * 11)
    (arrivals,) = twin.demand.kinds.values()
    assert (arrivals.jobs, arrivals.work) == (8, (2 * 20.0 + 60.0 + 100.0) / 8)
    assert twin.demand.hours == 10.0


def test_a_census_goes_on_from_a_snapshot_as_if_nothing_had_been():
    census = Census()
    for number in range(200):
        census.note(a_job(f"j{number}", model=f"m{number % 3}", work=1.0 + number), 10.0 * number)
    twin = Census()
    twin.restore(json.loads(json.dumps(census.facts())), lambda text: a_job(text["id"], model=text["model"]))
    for number in range(200, 240):
        for each in (census, twin):
            each.note(a_job(f"j{number}", model=f"m{number % 3}", work=1.0 + number), 10.0 * number)
        told = [sorted((a.jobs, a.work) for a in each.demand.kinds.values()) for each in (census, twin)]
        assert told[0] == told[1]
        assert census.demand.hours == twin.demand.hours
