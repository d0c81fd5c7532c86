"""A world that answers late, in any order, or not at all: after every event all laws hold, and nobody is forgotten.

The simulator answers orders at once. Here a script decides what happens next: an answer to any open order, a loss, a
notice, a refusal, an arrival, an end, a change of market or budget, or a plan that may have been made long ago.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.events import (
    AvailabilityChanged,
    BudgetChanged,
    JobChanged,
    JobFinished,
    PriceChanged,
)
from sublet.domain.plan import Phase, arrival
from sublet.kernel.journal import replay
from sublet.testing.driver import Driver
from sublet.testing.strategies import jobs, limits_and_budgets, offers, policies
from tests.rigs.sizes import examples
from tests.rigs.slow_world import VERBS, SlowWorld

steps = st.tuples(st.sampled_from(VERBS), st.integers(0, 7), st.sampled_from([0.0, 0.0, 1.0, 50.0]))
scripts = st.lists(steps, min_size=70, max_size=70).map(lambda script: [step for step in script if step[0] != "rest"])


@st.composite
def slow_worlds(draw):
    drawn = draw(offers())
    limits, quotas, budget = draw(limits_and_budgets(drawn))
    driver = Driver(drawn, limits=limits, quotas=quotas, budget=budget)
    workload = draw(jobs(most=6, submits=st.just(0.0)))
    return SlowWorld(driver, draw(policies), workload), budget


def calm_down(world, budget):
    """Everything can be had again at list price; every order is answered, every timer has rung."""
    driver = world.driver
    for offer in driver.kernel.supply.offers.values():
        driver.tell(AvailabilityChanged(driver.now_s, offer.id, None))
        driver.tell(PriceChanged(driver.now_s, offer.id, offer.price))
    driver.tell(BudgetChanged(driver.now_s, budget))
    for state in list(driver.kernel.jobs.values()):
        if state.job.paused:
            driver.tell(JobChanged(driver.now_s, replace(state.job, paused=False)))
    driver.settle(world.policy)
    driver.ring(list(driver.timers))  # such as: who stopped at this very instant is looked at again later
    driver.settle(world.policy)


@settings(max_examples=examples(300))
@given(slow_worlds(), scripts)
def test_however_slow_the_world_all_laws_hold_and_everyone_runs_in_the_end(case, script):
    world, budget = case
    driver, kernel = world.driver, world.driver.kernel
    for step in script:
        world.step(*step)  # the driver checks all laws after every event
    calm_down(world, budget)
    for _ in range(len(kernel.jobs)):
        running = [job_id for job_id, state in kernel.active.items() if state.phase is Phase.RUNNING]
        waiting = {state.job.id for state in kernel.waiting.by(arrival)}
        assert set(kernel.jobs) == set(kernel.active) | waiting  # nobody is forgotten
        assert running  # as long as anybody is here, somebody runs
        driver.tell(JobFinished(driver.now_s + 1.0, running[0]))
        driver.settle(world.policy)
    assert kernel.jobs == {}
    owned = sum(limit.min_nodes for limit in kernel.supply.limits.values())
    assert len(kernel.cluster.nodes) == owned
    replay(driver.journal)
