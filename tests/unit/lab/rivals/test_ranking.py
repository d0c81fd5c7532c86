"""Who comes first, who gives way, and how far back a decision looks."""

from __future__ import annotations

from sublet.domain.budget import Limit
from sublet.domain.plan import JobState, Plan, Pool, arrival
from sublet.domain.shape import Shape
from sublet.planning.draft import Draft
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.ranking import OVERTAKERS, RemainingTime, grant_in_order

POOL = Pool(name="p", gpu="T4", gpus_per_node=4, offer_ids=("o",))


def by_work(state):
    return state.job.work


def town(*jobs, nodes=1, running=()):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=nodes)})
    driver.submit(*jobs)
    driver.plan(Plan(shapes={job_id: Shape("p", gpus) for job_id, gpus in running}, hold={"o": nodes}))
    return driver


def granted(driver):
    draft = Draft(driver.kernel.snapshot())
    grant_in_order(draft, by_work, by_work)
    return draft.plan().shapes


def test_remaining_time_is_on_the_size_asked_for_packed():
    key = RemainingTime.on(POOL)
    state = JobState(job=a_job(work=120.0, gpus=6), seq=0, done=30.0)
    assert key(state) == 15.0
    assert key.after(state, 60.0) == 10.0


def test_equal_ranks_are_one_key_so_that_the_queue_is_sorted_once():
    assert RemainingTime.on(POOL) == RemainingTime("T4", 4)
    assert hash(RemainingTime.on(POOL)) == hash(RemainingTime("T4", 4))
    assert arrival(JobState(job=a_job(), seq=3)) == arrival(JobState(job=a_job(), seq=9))


def test_the_lowest_rank_is_granted_first_and_gaps_are_filled():
    driver = town(a_job("big", work=3.0, gpus=3), a_job("wide", work=2.0, gpus=4), a_job("one", work=5.0, gpus=1))
    assert granted(driver) == {"wide": Shape("p", 4)}
    driver = town(a_job("big", work=1.0, gpus=3), a_job("wide", work=2.0, gpus=4), a_job("one", work=5.0, gpus=1))
    assert granted(driver) == {"big": Shape("p", 3), "one": Shape("p", 1)}


def test_a_running_job_that_ranks_behind_gives_way():
    driver = town(a_job("slow", work=9.0, gpus=4), a_job("quick", work=1.0, gpus=4), running=[("slow", 4)])
    assert granted(driver) == {"slow": None, "quick": Shape("p", 4)}


def test_a_running_job_that_ranks_before_stays():
    driver = town(a_job("slow", work=9.0, gpus=4), a_job("quick", work=1.0, gpus=4), running=[("quick", 4)])
    assert granted(driver) == {}


def test_ties_go_to_whoever_came_first():
    driver = town(a_job("b", gpus=4), a_job("a", gpus=4))
    assert granted(driver) == {"b": Shape("p", 4)}


def test_a_decision_looks_only_so_far_behind_the_first_that_does_not_fit():
    first = a_job("first", work=1.0, gpus=3)
    misfits = [a_job(f"m{n}", work=2.0, gpus=2) for n in range(OVERTAKERS)]
    small = a_job("small", work=3.0, gpus=1)
    assert granted(town(first, *misfits, small)) == {"first": Shape("p", 3), "small": Shape("p", 1)}
    assert granted(town(first, *misfits, a_job("one more", work=2.0, gpus=2), small)) == {"first": Shape("p", 3)}
