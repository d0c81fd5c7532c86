"""First everyone who changes leaves, then all are placed."""

from __future__ import annotations

from sublet.domain.budget import Limit
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.policies.equal import Equal
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.vacate_first import VacateFirst

POLICY = VacateFirst(Equal())


def town(*jobs):
    driver = Driver([an_offer("o", pool="p")], limits={"o": Limit(min_nodes=2, max_nodes=2)})
    driver.submit(*jobs)
    driver.settle(POLICY)
    return driver


def test_a_plan_that_moves_nobody_is_passed_on_as_it_is():
    driver = town(a_job("a", gpus=4))
    driver.submit(a_job("b", gpus=4))
    assert POLICY.decide(driver.kernel.snapshot()) == Equal().decide(driver.kernel.snapshot())


def test_whoever_is_to_change_leaves_first_and_the_newcomer_waits_for_that():
    driver = town(a_job("a", gpus=8, min_gpus=1))
    driver.submit(a_job("b", gpus=8, min_gpus=1))
    plan = POLICY.decide(driver.kernel.snapshot())
    assert plan.shapes == {"a": None}
    assert plan.hold == {"o": 2}  # its nodes are kept for what comes next
    driver.settle(POLICY)
    assert {job_id: state.shape for job_id, state in driver.kernel.active.items()} == {
        "a": Shape("p", 4),
        "b": Shape("p", 4),
    }


def test_two_of_the_same_policy_are_the_same():
    assert VacateFirst(Equal()) == POLICY
    assert isinstance(POLICY.decide(town(a_job("a")).kernel.snapshot()), Plan)
