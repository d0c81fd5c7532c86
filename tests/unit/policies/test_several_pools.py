"""Where newcomers go when there are several pools, and who leaves when one of them falls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.events import AvailabilityChanged
from sublet.domain.plan import Phase
from sublet.perf.speedup import Linear
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.greedy.keep import GreedyKeep
from sublet_lab.rivals.greedy.speed import GreedySpeed
from sublet_lab.rivals.greedy.time import GreedyTime
from sublet_lab.rivals.sia.policy import Sia

LAST = "it came last"


def town(*jobs, policy, supply):
    """Pools by their names, of nodes with one GPU each."""
    driver = Driver([an_offer(name, gpus=1, pool=name) for name in supply])
    for name, gpus in supply.items():
        driver.tell(AvailabilityChanged(0.0, name, gpus))
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def job(job_id, least=1, most=1, gpus=None):
    return a_job(job_id, work=1e6, gpus=gpus or least, min_gpus=least, max_gpus=most, speed=Linear())


def where(driver):
    return {job_id: (state.shape.pool, state.shape.gpus) for job_id, state in driver.kernel.active.items()}


def changes(policy, snapshot):
    """What a plan changes, and why."""
    plan = policy.decide(snapshot)
    return {job_id: (each.pool, each.gpus) if each else None for job_id, each in plan.shapes.items()}, plan.reasons


# ---------------------------------------------------------------------- elastic batches


def test_newcomers_go_where_there_is_most_for_each():
    """Four and two: 4, 2 | 2, 2 | 4/3, 2 | 4/3, 1 | 1, 1 | 4/5, 1; of equals the first."""
    driver = town(*(job(name) for name in "abcdefg"), policy=ElasticBatch(), supply={"p": 4, "q": 2})
    assert "".join(where(driver)[name][0] for name in "abcdef") == "ppqppq"
    assert "g" not in where(driver)


def test_while_any_pool_has_room_newcomers_are_looked_at():
    jobs = job("wide", least=4, most=4), job("slim"), job("late"), job("last")
    driver = town(*jobs, policy=ElasticBatch(), supply={"p": 4, "q": 2})
    assert where(driver) == {"wide": ("p", 4), "slim": ("q", 1), "late": ("q", 1)}


def test_who_trains_where_supply_falls_does_not_move_and_the_last_of_them_wait():
    driver = town(*(job(name) for name in "abcd"), policy=ElasticBatch(), supply={"p": 4, "q": 0})
    driver.tell(AvailabilityChanged(1.0, "p", 2))
    driver.tell(AvailabilityChanged(1.0, "q", 2))
    found, reasons = changes(ElasticBatch(), driver.kernel.snapshot())
    assert found == {"c": None, "d": None}
    assert set(reasons.values()) == {f"supply fell and {LAST}"}


def test_who_still_waits_for_what_was_promised_may_have_it_elsewhere():
    driver = town(job("a"), job("b"), policy=ElasticBatch(), supply={"p": 2, "q": 0})
    driver.tell(AvailabilityChanged(1.0, "p", 1))
    driver.tell(AvailabilityChanged(1.0, "q", 1))
    snapshot = driver.kernel.snapshot()
    waits = replace(snapshot.active["b"], phase=Phase.WAITING)
    found, _ = changes(ElasticBatch(), replace(snapshot, active={**snapshot.active, "b": waits}))
    assert found == {"b": ("q", 1)}


@pytest.mark.parametrize("drop", [False, True])
def test_who_runs_in_one_pool_alone_which_is_full_waits_or_is_dropped_and_is_not_called_unfit(drop):
    policy = ElasticBatch(drop=drop)
    driver = Driver([an_offer("p", gpus=1, pool="p"), an_offer("q", gpus=1, pool="q", gpu="A100")])
    for name, gpus in (("p", 2), ("q", 1)):
        driver.tell(AvailabilityChanged(0.0, name, gpus))
    driver.submit(*(a_job(name, work=1e6, speed=Linear(kinds={"A100": 1.0})) for name in "ab"))
    driver.submit(a_job("never", work=1e6, speed=Linear(kinds={"H100": 1.0})))
    plan = policy.decide(driver.kernel.snapshot())
    assert {job_id: shape.pool for job_id, shape in plan.shapes.items()} == {"a": "q"}
    assert set(plan.warnings) == ({"b", "never"} if drop else {"never"})
    assert "speed is 0" in plan.warnings["never"]
    assert "dropped" in plan.warnings.get("b", "dropped")


# ---------------------------------------------------------------------- equal shares


def test_more_jobs_than_gpus_after_a_fall_leave_the_last_with_nothing():
    driver = town(*(job(name, most=2) for name in "abcd"), policy=Equal(), supply={"p": 4})
    driver.tell(AvailabilityChanged(1.0, "p", 3))
    found, reasons = changes(Equal(), driver.kernel.snapshot())
    assert found == {"d": None}
    assert reasons == {"d": f"more jobs than GPUs, and {LAST}"}


@pytest.mark.parametrize("gpus", range(1, 14))
def test_shares_are_as_if_handed_out_one_by_one_to_who_has_least(gpus):
    """The twin: the least of each in order until one does not fit, then one more to the first of the lowest, again."""
    bounds = {"a": (1, 2), "b": (2, 6), "c": (3, 3), "d": (1, 9)}
    jobs = [job(name, least=low, most=high) for name, (low, high) in bounds.items()]
    shares, left = {}, gpus
    for name, (low, _) in bounds.items():
        if low > left:
            break
        shares[name], left = low, left - low
    while left and (grows := [name for name in shares if shares[name] < bounds[name][1]]):
        shares[min(grows, key=lambda name: shares[name])] += 1
        left -= 1
    found = where(town(*jobs, policy=Equal(), supply={"p": gpus}))
    assert {name: each for name, (_, each) in found.items()} == shares


# ---------------------------------------------------------------------- greedy


def test_who_holds_gpus_comes_before_who_waits_if_nobody_is_to_be_shrunk():
    for policy, kept in ((GreedyKeep(), {}), (GreedySpeed(), {"first": ("p", 5), "second": ("p", 3)})):
        driver = town(job("first", least=5, most=5), job("second", most=4, gpus=4), policy=policy, supply={"p": 4})
        assert where(driver) == {"second": ("p", 4)}
        driver.tell(AvailabilityChanged(1.0, "p", 8))
        assert changes(policy, driver.kernel.snapshot())[0] == kept


@pytest.mark.parametrize(("left", "gpus"), [(0.0, 4), (1.0, 7)])
def test_who_has_done_all_its_work_keeps_what_it_has_until_it_says_so(left, gpus):
    """No width saves it any time."""
    driver = town(job("a", most=8, gpus=4), policy=GreedyTime(), supply={"p": 4})
    driver.tell(AvailabilityChanged(1.0, "p", 7))
    snapshot = driver.kernel.snapshot()
    nearly = replace(snapshot.active["a"], done=1e6 - left, as_of_s=1.0)
    found, _ = changes(GreedyTime(), replace(snapshot, active={"a": nearly}))
    assert found.get("a", ("p", 4)) == ("p", gpus)


# ---------------------------------------------------------------------- kind and number for all


def test_when_supply_falls_who_gains_less_waits_and_is_told_so():
    driver = town(job("a"), job("b"), policy=Sia(), supply={"p": 2})
    driver.tell(AvailabilityChanged(1.0, "p", 1))
    found, reasons = changes(Sia(), driver.kernel.snapshot())
    assert list(found.values()) == [None]
    assert list(reasons.values()) == ["others gain more from its GPUs"]
