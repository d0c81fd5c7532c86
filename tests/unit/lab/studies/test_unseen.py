"""What is reported of Pollux's traces shares no job with what was tuned on, and each job is in one trace."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.errors import MissingData
from sublet.testing.values import a_job
from sublet_lab.studies.cluster import REPORTED_T4, TWICE_T4
from sublet_lab.studies.pollux_oracle import jobs_of
from sublet_lab.studies.unseen import besides, unseen_cluster, unseen_workload

BY_CHANCE = 4  # of 160 jobs, that two draws have at the same second with the same of five models


def marks(jobs):
    return Counter((job.submit_s, job.model) for job in jobs)


@pytest.fixture(scope="module")
def traces():
    try:
        return {number: unseen_cluster(number).jobs for number in REPORTED_T4}
    except MissingData as missing:
        pytest.skip(str(missing).splitlines()[0])


def test_what_is_reported_has_nothing_of_what_was_tuned_on(traces):
    for number, jobs in traces.items():
        tuned = marks(jobs_of("1.0", number))
        assert len(jobs) == tuned.total() == 160
        assert marks(jobs) + tuned == marks(jobs_of("2.0", number))


def test_no_two_traces_are_of_the_same_jobs(traces):
    for one, two in combinations(traces.values(), 2):
        assert (marks(one) & marks(two)).total() <= BY_CHANCE


def test_two_traces_together_have_the_jobs_of_both(traces):
    for numbers in TWICE_T4:
        assert marks(unseen_cluster(*numbers).jobs) == sum((marks(traces[each]) for each in numbers), Counter())


def test_nodes_that_are_rented_get_the_same_jobs(traces):
    assert [job.submit_s for job in unseen_workload("1").jobs] == [job.submit_s for job in traces["1"]]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_each_seen_job_accounts_for_one(seen, more):
    """Brute force: take them out one by one."""
    jobs = [a_job(f"j{at}", submit_s=float(second)) for at, second in enumerate(sorted(seen + more))]
    found = besides(jobs, [a_job(f"s{at}", submit_s=float(second)) for at, second in enumerate(seen)])
    assert sorted(job.submit_s for job in found) == sorted(map(float, more))
    assert set(found) <= set(jobs)
