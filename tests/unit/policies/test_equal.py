"""Equal split: everyone the same, give or take one, unless smallest or largest widths bind."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, JobFinished
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def town(*jobs, nodes=2, size=4):
    driver = Driver([an_offer("o", gpus=size, pool="p")], limits={"o": Limit(max_nodes=nodes)})
    driver.submit(*jobs)
    driver.settle(Equal())
    return driver


def elastic(job_id, low=1, high=8):
    return a_job(job_id, work=1e6, gpus=low, min_gpus=low, max_gpus=high)


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def test_one_job_has_it_all_and_two_share():
    assert sizes(town(elastic("a"))) == {"a": 8}
    assert sizes(town(elastic("a"), elastic("b"))) == {"a": 4, "b": 4}


def test_an_uneven_rest_goes_to_those_that_came_first():
    assert sizes(town(*(elastic(name) for name in "abc"))) == {"a": 3, "b": 3, "c": 2}


def test_whoever_holds_the_spare_gpu_keeps_it():
    driver = town(elastic("a"), elastic("b"), elastic("c"))
    driver.submit(elastic("d", high=1))
    driver.settle(Equal())
    assert sizes(driver) == {"a": 3, "b": 2, "c": 2, "d": 1}
    driver.tell(JobFinished(1.0, "d"))
    driver.settle(Equal())
    assert sizes(driver) == {"a": 3, "b": 3, "c": 2}


def test_what_one_job_cannot_use_goes_to_the_others():
    assert sizes(town(elastic("a", high=1), elastic("b"))) == {"a": 1, "b": 7}
    assert sizes(town(elastic("a", low=5), elastic("b"))) == {"a": 5, "b": 3}


def test_more_jobs_than_gpus_run_in_order_of_arrival():
    driver = town(*(elastic(f"j{n}") for n in range(10)))
    assert sizes(driver) == {f"j{n}": 1 for n in range(8)}


def test_when_supply_falls_shares_shrink_before_anybody_is_sent_away():
    driver = town(elastic("a"), elastic("b"))
    driver.tell(AvailabilityChanged(1.0, "o", 1))
    shapes = Equal().decide(driver.kernel.snapshot()).shapes
    assert {job_id: shape.gpus for job_id, shape in shapes.items()} == {"a": 2, "b": 2}


bounds = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), min_size=1, max_size=7)


@given(bounds, st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_shares_differ_by_at_most_one_unless_a_width_binds(widths, nodes, size):
    drawn = [elastic(f"j{n}", low, low + more) for n, (low, more) in enumerate(widths)]
    driver = town(*drawn, nodes=nodes, size=size)
    shares = sizes(driver)
    for a, b in combinations([job for job in drawn if job.id in shares], 2):
        less, more = sorted((a, b), key=lambda job: shares[job.id])
        unequal = shares[more.id] - shares[less.id] > 1
        assert not unequal or shares[less.id] == less.max_gpus or shares[more.id] == more.min_gpus


@given(bounds, st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_no_gpu_is_idle_while_a_job_that_runs_could_use_it(widths, nodes, size):
    drawn = [elastic(f"j{n}", low, low + more) for n, (low, more) in enumerate(widths)]
    shares = sizes(town(*drawn, nodes=nodes, size=size))
    full = all(shares[job.id] == job.max_gpus for job in drawn if job.id in shares)
    assert full or sum(shares.values()) == nodes * size


def test_who_is_as_wide_as_it_may_be_leaves_the_rest_to_those_who_started_wider():
    jobs = a_job("narrow", work=1e6, gpus=1, max_gpus=1), a_job("wide", work=1e6, gpus=2, min_gpus=2, max_gpus=6)
    assert sizes(town(*jobs, nodes=1, size=4)) == {"narrow": 1, "wide": 3}
