"""Money is kept for those who may not run where it would go."""

from __future__ import annotations

from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.money import Price
from sublet.planning.choosy import kept_for_choosy
from sublet.planning.terms import most_gpus
from sublet.policies.fifo import Fifo
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.max_speedup import MaxSpeedup

OFFERS = [an_offer("cheap", gpus=1, pool="p"), an_offer("dear", gpus=2, usd_per_h="3", pool="q")]


def driver_of(*jobs, usd_per_h="9", **limits):
    driver = Driver(OFFERS, limits=limits, budget=Budget(burn=Price.from_usd_per_h(usd_per_h)))
    driver.submit(*jobs)
    return driver


def choosy(job_id, **facts):
    return a_job(job_id, gpus=1, pools=("q",), **facts)


def test_nothing_is_kept_where_all_go_anywhere_or_to_the_cheapest():
    snapshot = driver_of(a_job("a"), a_job("b", pools=("p", "q"))).kernel.snapshot()
    assert kept_for_choosy(snapshot) == {}
    assert most_gpus(snapshot) == {"p": 9, "q": 0}


def test_whole_nodes_are_kept_for_the_least_on_which_the_first_can_run():
    snapshot = driver_of(*(a_job(f"a{n}") for n in range(20)), choosy("c", min_gpus=1)).kernel.snapshot()
    assert kept_for_choosy(snapshot) == {"q": 1}
    assert most_gpus(snapshot) == {"p": 6, "q": 2}


def test_beyond_the_first_they_have_their_share_of_the_money_and_no_more():
    jobs = [choosy(f"c{n}") for n in range(12)]
    half = driver_of(*(a_job(f"a{n}") for n in range(12)), *jobs).kernel.snapshot()
    assert kept_for_choosy(half) == {"q": 1}  # of USD 4.50 an hour
    most = driver_of(*(a_job(f"a{n}") for n in range(4)), *jobs).kernel.snapshot()
    assert kept_for_choosy(most) == {"q": 2}  # of USD 6.75


def test_nothing_is_kept_for_one_whose_least_is_beyond_the_money_or_whose_pool_is_empty():
    assert kept_for_choosy(driver_of(a_job("a"), choosy("c"), usd_per_h="2").kernel.snapshot()) == {}
    driver = driver_of(a_job("a"), choosy("c"))
    driver.tell(AvailabilityChanged(0.0, "dear", 0))
    assert most_gpus(driver.kernel.snapshot()) == {"p": 9, "q": 0}


def test_fifo_sends_nobody_back_for_that_and_an_elastic_policy_makes_room():
    for policy, runs in ((Fifo(), False), (MaxSpeedup(), True)):
        driver = driver_of(a_job("a", gpus=8, min_gpus=1, max_gpus=8), cheap=Limit(max_nodes=8))
        driver.settle(policy)
        assert driver.kernel.jobs["a"].gpus == 8
        driver.submit(choosy("c"))
        driver.settle(policy)
        assert bool(driver.kernel.jobs["c"].gpus) is runs
        assert driver.kernel.jobs["a"].gpus == (6 if runs else 8)


def test_where_nobody_is_choosy_what_is_held_goes_first_whoever_yields():
    driver = driver_of(a_job("a", gpus=2, min_gpus=2), usd_per_h="3")
    driver.tell(AvailabilityChanged(0.0, "cheap", 0))
    driver.settle(Fifo())
    driver.tell(AvailabilityChanged(1.0, "cheap", None))
    snapshot = driver.kernel.snapshot()
    assert most_gpus(snapshot) == most_gpus(snapshot, nobody_yields=True) == {"p": 0, "q": 2}
