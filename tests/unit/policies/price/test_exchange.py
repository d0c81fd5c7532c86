"""Jobs whose speeds are still being learned keep what they have, unless there is a gain beyond what may be wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.actions import ResizeJob, StartJob, StopJob
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import AvailabilityChanged, JobChanged, JobFinished
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.perf.learned import Learned, Measured
from sublet.perf.speedup import Linear
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

SPOT = an_offer("s", gpus=1, usd_per_h="0.0976", notice_s=120.0)
STEADY = an_offer("d", gpus=1, usd_per_h="0.526", market=Market.ON_DEMAND)
BOX = {"limits": {"s": Limit(max_nodes=4), "d": Limit(max_nodes=4)}, "budget": Budget(burn=Usd.from_usd_per_h("0.95"))}
HOURS = {"gpt": (1.25, 3), "cnn": (0.67, 2), "mlp": (1.33, 2)}  # on one worker, and how many it may have


def a_learner(name, factor=None, workers=1):
    """As in the demonstration; with a factor, its speed was measured and is off by that much."""
    hours, most = HOURS[name]
    guess = 1.0 / (3600.0 * hours)
    speed = Learned(guess=guess)
    if factor is not None:
        rate = speed.rate("T4", (workers,), 0.0) * factor
        speed = Learned(guess=guess, measured=(Measured(gpu="T4", workers=workers, rate=rate),))
    return a_job(name, work=1.0, speed=speed, max_gpus=most, restart_s=60.0)


def moves_since(driver, journal):
    return [
        line
        for line in driver.journal[journal:]
        if any(f'"{o.__name__}"' in line for o in (StartJob, ResizeJob, StopJob))
    ]


def a_box(**facts):
    driver = Driver([SPOT, STEADY], **{**BOX, **facts})
    driver.submit(*(a_learner(name) for name in HOURS))
    driver.settle(Price())
    return driver


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_speeds_that_wobble_as_they_are_measured_move_nobody(seed):
    """The demonstration's first minutes: each job is measured once, then again and again, within a tenth."""
    driver, rng = a_box(), np.random.default_rng(seed)
    begun = len(driver.journal)
    for at in range(30):
        driver.now_s += 20.0
        name = list(HOURS)[at % 3]
        state = driver.kernel.jobs[name]
        job = a_learner(name, 1.0 + 0.05 * float(np.clip(rng.normal(), -2, 2)), state.gpus)
        driver.tell(JobChanged(driver.now_s, job))
        driver.settle(Price())
    assert moves_since(driver, begun) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from(list(HOURS))), min_size=3, max_size=12))
@pytest.mark.long
def test_no_decision_takes_one_job_off_spot_and_puts_another_there(steps):
    """Nodes come and go and speeds are measured, as in the demonstration; what is learned is within a tenth."""
    driver, rng = a_box(), np.random.default_rng(len(steps))
    for at, (nodes, name) in enumerate(steps, start=1):
        before = {job_id: state.shape for job_id, state in driver.kernel.jobs.items()}
        at_s = 120.0 * at
        if at % 2:
            driver.tell(AvailabilityChanged(at_s, "s", nodes))
        else:
            factor = 1.0 + 0.05 * float(np.clip(rng.normal(), -2, 2))
            driver.tell(JobChanged(at_s, a_learner(name, factor, max(1, driver.kernel.jobs[name].gpus))))
        driver.settle(Price())
        moved = {(before[j].pool, s.shape.pool) for j, s in driver.kernel.jobs.items() if before[j] and s.shape}
        assert not {("T4x1:spot", "T4x1:on-demand"), ("T4x1:on-demand", "T4x1:spot")} <= moved


class Still:
    """Keeps everything as it is."""

    def decide(self, snapshot):
        del snapshot
        return Plan()


@pytest.mark.parametrize("news", [AvailabilityChanged(1.0, "s", 3), JobFinished(1.0, "cnn")])
def test_minute_26_of_the_demonstration_there_is_a_spot_node_more_and_nobody_is_taken_off_spot(news):
    """Two on spot, one of them all but done; the third on demand, with the most to do. It returns, and that is all."""
    driver = Driver([SPOT, STEADY], **BOX)
    driver.tell(AvailabilityChanged(0.0, "s", 2))
    left = {"gpt": 0.28 / 1.25, "cnn": 0.02 / 0.67, "mlp": 0.93 / 1.33}
    driver.submit(*(replace(a_learner(name, 1.0), work=work, restart_s=20.0) for name, work in left.items()))
    shapes = {"gpt": Shape("T4x1:spot", 1), "cnn": Shape("T4x1:spot", 1), "mlp": Shape("T4x1:on-demand", 1)}
    driver.plan(Plan(shapes=shapes, hold={"s": 2, "d": 1}))
    driver.settle(Still())
    driver.tell(news)
    driver.settle(Price())
    assert str(driver.kernel.jobs["gpt"].shape) == "1 x T4x1:spot"
    assert str(driver.kernel.jobs["mlp"].shape) == "1 x T4x1:spot"


def test_two_jobs_do_not_change_places_for_what_one_of_them_will_soon_leave():
    """The one on spot ends in five minutes, the other needs an hour: it can wait, and neither is stopped."""
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=1)})
    short = replace(a_learner("cnn", 1.0), work=0.12, max_gpus=1)
    driver.submit(short)
    driver.settle(Price())
    driver.submit(replace(a_learner("mlp", 1.0), max_gpus=1))
    driver.settle(Price())
    assert {name: str(state.shape) for name, state in driver.kernel.jobs.items()} == {
        "cnn": "1 x T4x1:spot",
        "mlp": "1 x T4x1:on-demand",
    }


def test_one_that_runs_makes_room_where_that_is_worth_it_to_both_together():
    """It is delayed by half an hour or so, and the newcomer is spared hours at five times the rent."""
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=3)})
    wide = a_learner("gpt")
    measured = tuple(
        Measured(gpu="T4", workers=workers, rate=wide.speed.rate("T4", (workers,), 0.0)) for workers in (2, 3)
    )
    driver.submit(replace(wide, speed=replace(wide.speed, measured=measured), work=3.0))
    driver.settle(Price())
    assert driver.kernel.jobs["gpt"].shape.gpus == 3
    driver.submit(replace(a_learner("mlp", 1.0), max_gpus=1, work=3.0))
    driver.settle(Price())
    assert {name: str(state.shape) for name, state in driver.kernel.jobs.items()} == {
        "gpt": "2 x T4x1:spot",
        "mlp": "1 x T4x1:spot",
    }


def test_of_two_that_run_none_makes_room_for_the_other():
    """It would save a little, by what is believed; to stop one so that the other can move is not worth the trust."""
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=3)})
    wide = a_learner("gpt")
    one = wide.speed.rate("T4", (1,), 0.0)
    rates = (Measured(gpu="T4", workers=1, rate=one), Measured(gpu="T4", workers=2, rate=1.3 * one))
    wide = replace(wide, speed=replace(wide.speed, measured=rates), max_gpus=2)
    long = replace(a_learner("mlp", 1.0), max_gpus=1, work=2.0)
    driver.submit(wide, long)
    driver.settle(Price())
    assert {str(state.shape) for state in driver.kernel.jobs.values()} == {"2 x T4x1:spot", "1 x T4x1:spot"}
    driver.tell(AvailabilityChanged(60.0, "s", 2))
    driver.settle(Price())
    assert str(driver.kernel.jobs["mlp"].shape) == "1 x T4x1:on-demand"  # it has the most to do
    begun = len(driver.journal)
    for at_s in (120.0, 180.0, 240.0):
        driver.tell(JobChanged(at_s, long))
        driver.settle(Price())
    assert moves_since(driver, begun) == []


def test_one_more_spot_node_goes_to_whom_it_saves_most():
    """A short job could be wider by it, a long one need not pay five times the rent any more."""
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=3)})
    driver.tell(AvailabilityChanged(0.0, "s", 1))
    driver.submit(replace(a_learner("cnn", 1.0), work=0.4))
    driver.settle(Price())
    driver.submit(replace(a_learner("mlp", 1.0), max_gpus=1))
    driver.settle(Price())
    assert str(driver.kernel.jobs["mlp"].shape) == "1 x T4x1:on-demand"
    driver.tell(AvailabilityChanged(60.0, "s", 2))
    driver.settle(Price())
    assert {name: str(state.shape) for name, state in driver.kernel.jobs.items()} == {
        "cnn": "1 x T4x1:spot",
        "mlp": "1 x T4x1:spot",
    }


@pytest.mark.parametrize(("error", "moves"), [(1.02, False), (2.5, True)])
def test_a_job_is_widened_for_more_than_what_may_be_wrong_and_not_for_less(error, moves):
    """Two workers were measured to be barely faster than one, or far faster; money is no object."""
    ample = Budget(average=Usd.from_usd_per_h("1000"))
    driver = Driver([SPOT, STEADY], limits={"s": Limit(max_nodes=2), "d": Limit(max_nodes=2)}, budget=ample)
    job = replace(a_learner("cnn", 1.0), max_gpus=2, work=10.0)
    one = job.speed.rate("T4", (1,), 0.0)
    driver.submit(replace(job, max_gpus=1))
    driver.settle(Price())
    measured = (
        Measured(gpu="T4", workers=1, rate=one),
        Measured(gpu="T4", workers=2, rate=one * error),
    )
    driver.tell(JobChanged(driver.now_s, replace(job, speed=Learned(guess=one, measured=measured))))
    driver.settle(Price())
    assert (driver.kernel.jobs["cnn"].gpus == 2) == moves


def test_what_is_known_is_not_doubted():
    driver = Driver([SPOT], limits={"s": Limit(max_nodes=2)})
    job = a_job("a", work=36_000.0, speed=Linear(), max_gpus=1, restart_s=1.0)
    driver.submit(job)
    driver.settle(Price())
    driver.tell(JobChanged(driver.now_s, replace(job, max_gpus=2)))
    driver.settle(Price())
    assert driver.kernel.jobs["a"].gpus == 2
