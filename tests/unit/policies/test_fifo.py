"""First come, first served: nobody overtakes, nobody is resized."""

from __future__ import annotations

from hypothesis import given

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, JobFinished, NodeLost
from sublet.domain.plan import Phase
from sublet.domain.shape import Shape
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.strategies import jobs
from sublet.testing.values import a_job, an_offer


def town(*jobs, nodes=2, **limits):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=nodes, **limits)})
    driver.submit(*jobs)
    driver.settle(Fifo())
    return driver


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def test_jobs_start_in_order_of_arrival_at_the_size_they_ask_for():
    assert sizes(town(a_job("a", gpus=3, max_gpus=8), a_job("b", gpus=4), a_job("c", gpus=4))) == {"a": 3, "b": 4}


def test_a_small_job_does_not_overtake_a_large_one_that_waits():
    driver = town(a_job("a", gpus=6), a_job("b", gpus=4), a_job("c", gpus=1))
    assert sizes(driver) == {"a": 6}
    driver.tell(JobFinished(9.0, "a"))
    driver.settle(Fifo())
    assert sizes(driver) == {"b": 4, "c": 1}


def test_running_jobs_are_left_alone_when_there_is_room_to_grow():
    driver = town(a_job("a", gpus=2, max_gpus=8))
    assert Fifo().decide(driver.kernel.snapshot()).shapes == {}


def test_a_job_too_wide_for_the_cluster_runs_at_its_width_and_one_that_cannot_waits():
    assert sizes(town(a_job("a", gpus=20))) == {"a": 8}
    assert sizes(town(a_job("a", gpus=20, min_gpus=9))) == {}


def test_when_supply_falls_the_last_to_come_gives_way():
    driver = town(a_job("a", gpus=4), a_job("b", gpus=4))
    driver.tell(AvailabilityChanged(5.0, "o", 1))
    plan = Fifo().decide(driver.kernel.snapshot())
    assert plan.shapes == {"b": None}
    assert "came last" in plan.reasons["b"]


def test_when_supply_falls_below_one_job_it_runs_on_what_is_left():
    driver = town(a_job("a", gpus=8, min_gpus=2))
    driver.tell(AvailabilityChanged(5.0, "o", 1))
    driver.tell(NodeLost(5.0, "n2"))
    driver.settle(Fifo())
    assert (sizes(driver), driver.kernel.jobs["a"].phase) == ({"a": 4}, Phase.RUNNING)


@given(jobs(most=8))
def test_nobody_overtakes(drawn):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(max_nodes=3)})
    driver.submit(*drawn)
    order = [job.id for job in drawn]
    while driver.kernel.jobs:
        driver.settle(Fifo())
        here = [job_id for job_id in order if job_id in driver.kernel.jobs]
        started = [job_id for job_id in here if job_id in driver.kernel.active]
        assert started == here[: len(started)]  # an unbroken head of the line
        assert started
        for job_id in started:
            job = driver.kernel.jobs[job_id].job
            assert driver.kernel.active[job_id].shape == Shape("p", min(job.gpus, 12))
        driver.tell(JobFinished(driver.now_s + 1.0, started[0]))


def test_one_that_may_run_in_one_pool_alone_does_not_keep_others_from_the_rest():
    offers = [an_offer("a", gpus=4, pool="a"), an_offer("b", gpus=4, pool="b")]
    driver = Driver(offers, limits={"a": Limit(max_nodes=1), "b": Limit(max_nodes=1)})
    driver.submit(a_job("first", gpus=4, pools=("a",)), a_job("second", gpus=4, pools=("a",)), a_job("third", gpus=4))
    driver.settle(Fifo())
    assert {job_id: state.shape.pool for job_id, state in driver.kernel.active.items()} == {"first": "a", "third": "b"}
