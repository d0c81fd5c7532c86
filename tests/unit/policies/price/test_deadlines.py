"""Who comes first by a deadline: the earliest that can be met."""

from __future__ import annotations

import numpy as np

from sublet.domain.budget import Limit
from sublet.domain.events import JobSubmitted
from sublet.domain.offer import Market
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import value_of_time
from sublet.policies.price.choices import SAFETY, ask
from sublet.policies.price.cluster_split import turns
from sublet.policies.price.decision import OVERTAKERS, Decision
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

HOUR_S = 3600.0
FIRST, NOT = 0.0, np.inf


def cluster():
    """One GPU that is paid for."""
    return Driver([an_offer("own", gpus=1, market=Market.ON_DEMAND)], limits={"own": Limit(min_nodes=1, max_nodes=1)})


def job(job_id, hours=1.0, due_h=None, **fields):
    return a_job(job_id, work=HOUR_S * hours, deadline_s=None if due_h is None else HOUR_S * due_h, **fields)


def asked_on(driver):
    """Those that are asked, by id, with their places."""
    terms = Terms.from_snapshot(driver.kernel.snapshot())
    decision = Decision.read(terms, value_of_time(terms).over, review_s=60.0)
    asked, _ = ask(decision, decision.jobs)
    turn_J = turns(asked.jobs, asked.table, terms.now_s)
    return {state.job.id: turn for state, turn in zip(asked.jobs.states, turn_J.tolist(), strict=True)}


def turns_of(*jobs):
    driver = cluster()
    driver.submit(*jobs)
    return asked_on(driver)


def runs_on(driver):
    return [state.job.id for state in driver.kernel.snapshot().active.values()]


def test_the_earliest_deadline_comes_first_and_who_has_none_is_not_among_them():
    found = turns_of(job("late", due_h=9.0), job("none", 0.1), job("soon", 2.0, due_h=3.0))
    assert found == {"soon": FIRST, "late": 1.0, "none": NOT}


def test_what_cannot_be_met_any_more_gives_nobody_precedence():
    found = turns_of(job("hopeless", 2.0, due_h=2.0 * SAFETY - 0.1), job("hardly", 2.0, due_h=2.0 * SAFETY + 0.01))
    assert found == {"hopeless": NOT, "hardly": FIRST}


def test_of_equal_deadlines_who_trains_goes_on():
    driver = cluster()
    driver.submit(job("long", 3.0, due_h=9.0))
    driver.settle(Price())
    driver.submit(job("short", 1.0, due_h=9.0))
    driver.settle(Price())
    assert runs_on(driver) == ["long"]


def test_who_has_only_just_begun_gives_way_to_a_deadline():
    driver = cluster()
    driver.submit(job("short", 1.0, restart_s=60.0))
    driver.settle(Price())
    assert runs_on(driver) == ["short"]
    driver.submit(job("due", 3.0, due_h=3.2))
    driver.settle(Price())
    assert runs_on(driver) == ["due"]


def test_behind_any_crowd_of_shorter_jobs_the_earliest_deadlines_are_asked_and_the_shortest_beside_them():
    loose = [job(f"loose{n}", 9.0, due_h=1000.0 + n) for n in range(2 * OVERTAKERS)]
    short = [job(f"short{n}", 0.1) for n in range(2 * OVERTAKERS)]
    found = turns_of(*short, *loose, job("due", 3.0, due_h=3.2))
    assert found["due"] == FIRST
    assert {"short0", "loose0"} <= found.keys()
    assert len(found) == 2 * (OVERTAKERS + 1)


def test_a_deadline_that_has_passed_is_not_asked_before_others():
    driver = cluster()
    driver.submit(*(job(f"gone{n}", 9.0, due_h=1.0) for n in range(4 * OVERTAKERS)), job("due", 10.0, due_h=20.0))
    driver.tell(JobSubmitted(2.0 * HOUR_S, job("new", 9.0)))
    assert asked_on(driver)["due"] == FIRST
