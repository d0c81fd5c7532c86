"""Three greedy rivals: by speed, by time saved, and without shrinking anyone."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged, JobFinished, NodeLost
from sublet.domain.timers import PlanAgain
from sublet.errors import InvalidValue
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear, PowerLaw, Table
from sublet.sim.simulator import Cloud, simulate
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.greedy.keep import GreedyKeep
from sublet_lab.rivals.greedy.speed import GreedySpeed
from sublet_lab.rivals.greedy.time import GreedyTime
from tests.rigs.sizes import examples

GPU = "T4"
every_greedy = pytest.mark.parametrize("policy", [GreedySpeed(), GreedyTime(), GreedyKeep()], ids=repr)


def town(*jobs, gpus=8, policy):
    driver = Driver([an_offer("o", gpus=gpus, pool="p")], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, high=8, speed=None, gpus=1, **facts):
    return a_job(job_id, gpus=gpus, max_gpus=high, speed=speed or Linear(), **{"work": 1e6, **facts})


def sizes(driver):
    return {job_id: state.gpus for job_id, state in driver.kernel.active.items()}


# ---------------------------------------------------------------------- all of them


@every_greedy
def test_the_first_that_does_not_fit_ends_the_starting(policy):
    jobs = elastic("a", 6, gpus=6, min_gpus=6), elastic("b", 6, gpus=6, min_gpus=6), elastic("c", 1)
    assert sizes(town(*jobs, policy=policy)) == {"a": 6}


@every_greedy
def test_one_that_nothing_could_hold_does_not_keep_the_others_waiting(policy):
    jobs = elastic("wide", 9, gpus=9, min_gpus=9), elastic("b", 1)
    assert sizes(town(*jobs, policy=policy)) == {"b": 1}


@every_greedy
def test_one_without_any_speed_here_does_not_keep_the_others_waiting_and_is_told(policy):
    jobs = elastic("none", speed=Table(rates={"A100": {1: 1.0}})), elastic("b", 1)
    driver = town(*jobs, policy=policy)
    assert sizes(driver) == {"b": 1}
    assert "speed is 0" in policy.decide(driver.kernel.snapshot()).warnings["none"]


@every_greedy
def test_holes_are_stepped_over_and_dents_end_the_growth(policy):
    holes = Table(rates={GPU: {1: 1.0, 2: 0.0, 3: 0.0, 4: 3.0}})
    dents = Table(rates={GPU: {1: 1.0, 2: 0.5, 3: 4.0}})
    assert sizes(town(elastic("a", 4, holes), policy=policy)) == {"a": 4}
    assert sizes(town(elastic("a", 3, dents), policy=policy)) == {"a": 1}
    no_start = Table(rates={GPU: {1: 0.0, 2: 2.0, 3: 3.0}})
    assert sizes(town(elastic("a", 3, no_start, gpus=2), policy=policy)) == {"a": 3}


@every_greedy
def test_nobody_grows_beyond_what_helps_or_what_it_may_have(policy):
    jobs = elastic("serial", speed=Amdahl(parallel=0.0)), elastic("narrow", 2)
    assert sizes(town(*jobs, policy=policy)) == {"serial": 1, "narrow": 2}


@every_greedy
def test_goodput_that_changes_with_progress_is_followed_to_the_end(policy):
    late = Phased(ends=(100.0, 900.0), rates=lambda gpu, spread: (sum(spread) ** 0.1, float(sum(spread))))
    jobs = [elastic(f"g{at}", 4, late, work=900.0, submit_s=60.0 * at, restart_s=5.0) for at in range(4)]
    cloud = Cloud(offers=[an_offer("o", gpus=4)], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    assert simulate(jobs, policy, cloud, checked=True).unfinished == ()


@every_greedy
def test_it_looks_again_at_regular_times(policy):
    assert town(elastic("a"), policy=policy).timers[PlanAgain()] == 600.0
    assert town(policy=policy).timers == {}
    with pytest.raises(InvalidValue, match="every_s"):
        type(policy)(every_s=0.0)


# ---------------------------------------------------------------------- what sets them apart


def test_by_speed_the_next_gpu_goes_where_it_adds_most_speed():
    jobs = elastic("long", speed=PowerLaw(exponent=0.5), work=1e9), elastic("short", speed=PowerLaw(exponent=0.9))
    assert sizes(town(*jobs, policy=GreedySpeed())) == {"long": 1, "short": 7}


def test_by_time_the_next_gpu_goes_where_it_saves_most_time():
    jobs = elastic("long", speed=PowerLaw(exponent=0.5), work=1e9), elastic("short", speed=PowerLaw(exponent=0.9))
    assert sizes(town(*jobs, policy=GreedyTime())) == {"long": 7, "short": 1}


def test_units_of_work_do_not_matter_to_speed():
    jobs = elastic("a", speed=Linear(kinds={GPU: 1e6})), elastic("b", speed=Linear(kinds={GPU: 1.0}))
    assert sizes(town(*jobs, gpus=3, policy=GreedySpeed())) == {"a": 2, "b": 1}


@pytest.mark.parametrize(("policy", "after"), [(GreedySpeed(), {"a": 1, "b": 7}), (GreedyKeep(), {"a": 8})])
def test_only_keep_lets_a_running_job_have_what_it_has(policy, after):
    driver = town(elastic("a", speed=PowerLaw(exponent=0.5)), policy=policy)
    assert sizes(driver) == {"a": 8}
    driver.now_s = 10.0
    driver.submit(elastic("b"))
    driver.settle(policy)
    assert sizes(driver) == after


def test_keep_gives_newcomers_what_they_asked_for_or_what_is_free():
    jobs = elastic("a", 5, gpus=5), elastic("b", 8, gpus=6), elastic("c")
    driver = town(*jobs, policy=GreedyKeep())
    assert sizes(driver) == {"a": 5, "b": 3}
    driver.tell(JobFinished(10.0, "a"))
    driver.settle(GreedyKeep())
    assert sizes(driver) == {"b": 7, "c": 1}


def test_keep_shrinks_only_when_supply_falls():
    driver = Driver([an_offer("o", gpus=4, pool="p")], limits={"o": Limit(max_nodes=2)})
    driver.submit(elastic("a", 5, gpus=5), elastic("b", 3, gpus=3))
    driver.settle(GreedyKeep())
    driver.tell(AvailabilityChanged(10.0, "o", 1))
    driver.tell(NodeLost(10.0, min(driver.kernel.cluster.nodes)))
    driver.settle(GreedyKeep())
    assert sizes(driver) == {"a": 4}


# ---------------------------------------------------------------------- when greedy is the best


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from([0.2, 0.5, 0.8, 1.0]), min_size=1, max_size=4), st.integers(4, 7))
def test_with_diminishing_returns_no_split_is_faster_in_sum(exponents, gpus):
    jobs = [elastic(f"j{at}", 4, PowerLaw(exponent=p)) for at, p in enumerate(exponents)]
    given_to = sizes(town(*jobs, gpus=gpus, policy=GreedySpeed()))

    def speed(widths):
        return sum(job.speed.rate(GPU, (n,), 0.0) for job, n in zip(jobs, widths, strict=True))

    every = [w for w in product(range(1, 5), repeat=len(jobs)) if sum(w) <= gpus]
    assert speed([given_to[job.id] for job in jobs]) == pytest.approx(max(map(speed, every)))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0.4, 0.8, 1.0])), min_size=1, max_size=3),
    st.integers(3, 7),
)
def test_with_diminishing_returns_no_split_leaves_less_time_in_sum(facts, gpus):
    jobs = [elastic(f"j{at}", 5, PowerLaw(exponent=p), work=float(w)) for at, (w, p) in enumerate(facts)]
    given_to = sizes(town(*jobs, gpus=gpus, policy=GreedyTime()))

    def left_s(widths):
        return sum(job.speed.seconds(GPU, (n,), 0.0, job.work) for job, n in zip(jobs, widths, strict=True))

    every = [w for w in product(range(1, 6), repeat=len(jobs)) if sum(w) <= gpus]
    assert left_s([given_to[job.id] for job in jobs]) == pytest.approx(min(map(left_s, every)))
