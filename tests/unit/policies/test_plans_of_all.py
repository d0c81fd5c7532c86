"""What plans of several policies have in common: when they want to be asked again, who gives first, who waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.plan import Phase
from sublet.perf.speedup import Linear, PowerLaw
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.policies.mip.policy import Mip
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.greedy.speed import GreedySpeed
from sublet_lab.rivals.max_speedup import MaxSpeedup
from sublet_lab.rivals.optimus import Optimus
from sublet_lab.rivals.pollux import Pollux
from sublet_lab.rivals.sia.policy import Sia
from sublet_lab.rivals.srtf import Srtf


def town(*jobs, policy, gpus=4):
    driver = Driver([an_offer("o", gpus=1, pool="p")], limits={"o": Limit(max_nodes=gpus)})
    driver.submit(*jobs)
    driver.settle(policy)
    return driver


def elastic(job_id, exponent=1.0, most=8, **facts):
    speed = Linear() if exponent == 1.0 else PowerLaw(exponent=exponent)
    return a_job(job_id, gpus=1, max_gpus=most, speed=speed, **{"work": 1e6, "restart_s": 1.0, **facts})


@pytest.mark.parametrize(
    ("policy", "again_s"),
    [
        (Pollux(), 160.0),
        (Pollux(round_s=7.0), 107.0),
        (Optimus(round_s=7.0), 107.0),
        (Sia(round_s=7.0), 107.0),
        (GreedySpeed(every_s=70.0), 140.0),  # at multiples
        (Mip(every_s=70.0), 140.0),
        (Equal(), None),
        (MaxSpeedup(), None),
        (Fifo(), None),
    ],
    ids=lambda each: type(each).__name__,
)
def test_whose_plan_changes_as_time_passes_is_asked_again_while_somebody_is_there(policy, again_s):
    """Some after so long, some at multiples of it; jobs that wait are somebody, too."""
    runs = town(elastic("a", most=2), policy=policy)
    waits = town(a_job("wide", work=1e6, gpus=2, min_gpus=2), policy=policy, gpus=1)
    assert not waits.kernel.active
    for driver in (runs, waits):
        assert policy.decide(replace(driver.kernel.snapshot(), now_s=100.0)).ask_again_s == again_s
    assert policy.decide(town(policy=policy).kernel.snapshot()).ask_again_s is None


@pytest.mark.parametrize(
    "policy", [Equal(), MaxSpeedup(), Mip(), GreedySpeed(), Pollux(), Optimus()], ids=lambda each: type(each).__name__
)
def test_in_a_plan_room_is_made_before_it_is_taken(policy):
    """One has all four; another comes: what it gets was given first, or the plan could not be carried out in order."""
    driver = town(elastic("old", 0.5, most=4), policy=policy)
    assert driver.kernel.active["old"].gpus == 4
    driver.submit(elastic("new", 0.9, most=4, work=1e3))
    plan = policy.decide(driver.kernel.snapshot())
    gpus = {job_id: 0 if shape is None else shape.gpus for job_id, shape in plan.shapes.items()}
    assert gpus.get("new", 0) > 0
    assert gpus["old"] + gpus["new"] <= 4
    driver.settle(policy)
    assert sum(state.gpus for state in driver.kernel.active.values()) <= 4


@pytest.mark.parametrize("policy", [Equal(), MaxSpeedup()], ids=lambda each: type(each).__name__)
def test_those_that_shrink_come_before_those_that_grow(policy):
    driver = town(*(elastic(name, 0.9, most=4) for name in "ab"), policy=policy)
    assert {job_id: state.gpus for job_id, state in driver.kernel.active.items()} == {"a": 2, "b": 2}
    snapshot = driver.kernel.snapshot()
    small, large = (
        replace(state, gpus=gpus, spread=(1,) * gpus, shape=replace(state.shape, gpus=gpus), runs_in=None)
        for state, gpus in ((snapshot.active["a"], 1), (snapshot.active["b"], 3))
    )
    plan = policy.decide(replace(snapshot, active={"a": small, "b": large}))
    assert [(job_id, shape.gpus) for job_id, shape in plan.shapes.items()] == [("b", 2), ("a", 2)]


@pytest.mark.parametrize(
    "policy",
    [Equal(), MaxSpeedup(), Optimus(), Pollux(), Mip(), GreedySpeed(), Sia(), Fifo(), Srtf()],
    ids=lambda each: type(each).__name__,
)
def test_when_there_are_fewer_gpus_than_jobs_as_many_run_as_there_are_gpus(policy):
    driver = town(*(elastic(f"j{at}", most=1) for at in range(4)), policy=policy)
    driver.tell(AvailabilityChanged(1.0, "o", 2))
    plan = policy.decide(driver.kernel.snapshot())
    assert list(plan.shapes.values()) == [None, None]
    assert set(plan.reasons) == set(plan.shapes)
    assert all(plan.reasons.values())


def test_who_is_sent_back_before_it_had_anything_queues_at_once_and_who_runs_leaves_first():
    """First come, first served: of two that came last one was promised a GPU of a pool that has none any more."""
    driver = Driver([an_offer(name, gpus=1, pool=name) for name in ("p", "q")])
    driver.tell(AvailabilityChanged(0.0, "p", 2))
    driver.tell(AvailabilityChanged(0.0, "q", 0))
    driver.submit(*(a_job(name, work=1e6) for name in "ab"))
    driver.settle(Fifo())
    driver.tell(AvailabilityChanged(1.0, "p", 1))
    driver.tell(AvailabilityChanged(1.0, "q", 1))
    snapshot = driver.kernel.snapshot()
    for phase, to in ((Phase.RUNNING, None), (Phase.WAITING, "q")):
        last = replace(snapshot.active["b"], phase=phase)
        plan = Fifo().decide(replace(snapshot, active={**snapshot.active, "b": last}))
        assert {job_id: shape and shape.pool for job_id, shape in plan.shapes.items()} == {"b": to}
