"""What the published system takes for a forecast where there is none, as live: what has come so far."""

from __future__ import annotations

from dataclasses import replace

from sublet.domain.budget import Budget, Limit
from sublet.domain.demand import kind_of
from sublet.domain.events import JobChanged
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.perf.learned import Learned, Measured
from sublet.perf.speedup import Linear, PowerLaw
from sublet.policies.boa.policy import Boa, counted_demand
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

ROOT = PowerLaw(exponent=0.5)


def town(*jobs, average="3", policy=Boa()):  # noqa: B008 - frozen
    """GPUs of 1 USD an hour without end, and no forecast."""
    offers = [an_offer("o", gpus=1, pool="p", usd_per_h="1", market=Market.ON_DEMAND)]
    driver = Driver(offers, limits={"o": Limit()}, budget=Budget(average=Usd.from_usd_per_h(average)))
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def root(job_id, **fields):
    return a_job(job_id, **{"work": 3600.0, "speed": ROOT, "gpus": 30, "max_gpus": 30, "model": "m", **fields})


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


def demand_of(driver, hours=0.0):
    """So much later."""
    snapshot = replace(driver.kernel.snapshot(), now_s=hours * 3600.0)
    return counted_demand(snapshot, sorted(snapshot.active.values(), key=lambda state: state.seq))


def test_widths_spend_the_average_on_as_many_jobs_an_hour_as_have_come():
    """A root on n GPUs costs its n hours over the root of n: one an hour, for 3 USD, has nine, two have two or so."""
    assert sizes(town(root("a"))) == {"a": 9}
    assert sizes(town(root("a"), average="1000")) == {"a": 30}
    both = sizes(town(root("a"), root("b")))
    assert both["a"] == both["b"] == 2


def test_jobs_are_as_narrow_as_they_can_be_where_too_many_have_come_for_the_average():
    assert sizes(town(root("a"), average="0.5")) == {"a": 1}
    assert sizes(town(root("a", min_gpus=4), average="0.5")) == {"a": 4}


def test_a_job_that_has_learned_how_fast_it_is_goes_by_that_and_those_gone_are_thought_to_be_like_it():
    slow = Learned(guess=1.0)
    driver = town(a_job("a", work=3600.0, speed=slow, gpus=8, max_gpus=8))
    driver.submit(a_job("b", work=3600.0, speed=slow, gpus=8, max_gpus=8))
    measured = Learned(guess=1.0, measured=(Measured(gpu="T4", workers=1, rate=2.0),))
    known = a_job("a", work=3600.0, speed=measured, gpus=8, max_gpus=8)
    driver.tell(JobChanged(1.0, known))
    found = counted_demand(driver.kernel.snapshot(), [driver.kernel.jobs["a"]])
    assert {kind: each.jobs for kind, each in found.kinds.items()} == {kind_of(known): 2.0}


def test_jobs_of_a_kind_that_is_known_are_counted_as_they_came():
    driver = town(root("a"), a_job("b", work=7200.0, speed=Linear(), model="n"))
    found = demand_of(driver)
    assert sorted((each.like.id, each.jobs, each.work) for each in found.kinds.values()) == [
        ("a", 1, 3600.0),
        ("b", 1, 7200.0),
    ]


def test_the_hours_count_from_one_before_the_first_and_the_demand_is_the_same_object_while_they_hardly_change():
    driver = town(root("a"))
    first = demand_of(driver)
    assert first.hours == 1.0
    assert demand_of(driver) is first
    assert demand_of(driver, 0.01) is first
    assert demand_of(driver, 3.0).hours == 4.0


def test_endless_jobs_do_not_tell_what_comes():
    driver = town(root("a"), a_job("endless", work=float("inf"), speed=ROOT, gpus=2, max_gpus=2))
    assert [each.like.id for each in demand_of(driver).kinds.values()] == ["a"]
