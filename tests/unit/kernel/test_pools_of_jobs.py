"""Where owners let their jobs run: the kernel sees to it, and the journal remembers it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet import plugins
from sublet.domain.actions import MakePlan, RefusePlan, RentNode, StopJob
from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import JobChanged, JobSubmitted, PlanMade
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.kernel.invariants import check
from sublet.kernel.journal import header_line, line_from, replay
from sublet.kernel.kernel import Kernel
from sublet.perf.speedup import Linear
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

OFFERS = (an_offer("lent", pool="lent"), an_offer("bought", pool="bought"))


def test_a_plan_that_puts_a_job_where_it_may_not_run_is_refused_and_changes_nothing():
    kernel = Kernel(OFFERS)
    kernel.handle(JobSubmitted(0.0, a_job("choosy", gpus=1, pools=("bought",))))
    kernel.handle(JobSubmitted(0.0, a_job("easy", gpus=1)))
    plan = Plan(shapes={"easy": Shape("lent", 1), "choosy": Shape("lent", 1)}, hold={"lent": 1})
    refusal, _ = kernel.handle(PlanMade(1.0, plan, kernel.seen))
    assert refusal == RefusePlan("shapes[choosy].pool", "lent", "one of bought")
    assert kernel.active == {}
    assert kernel.cluster.nodes == {}
    check(kernel)


def test_a_stale_plan_that_did_not_see_where_a_job_may_run_is_not_refused_and_the_job_stays():
    kernel = Kernel(OFFERS)
    kernel.handle(JobSubmitted(0.0, a_job("pinned", gpus=1)))
    kernel.handle(JobSubmitted(0.0, a_job("easy", gpus=1)))
    seen = kernel.seen
    kernel.handle(JobChanged(1.0, a_job("pinned", gpus=1, pools=("bought",))))
    plan = Plan(shapes={"easy": Shape("lent", 1), "pinned": Shape("lent", 1)}, hold={"lent": 1})
    orders = kernel.handle(PlanMade(2.0, plan, seen))
    assert not any(isinstance(order, RefusePlan) for order in orders)
    assert set(kernel.active) == {"easy"}
    assert orders[-1] == MakePlan()
    check(kernel)


def test_the_pools_of_a_job_survive_the_journal():
    kernel, lines = Kernel(OFFERS), [header_line(OFFERS, {}, UNLIMITED)]
    event = JobSubmitted(0.0, a_job("choosy", gpus=1, pools=("bought", "lent")))
    lines.append(line_from(event, kernel.handle(event)))
    assert replay(lines).jobs["choosy"].job.pools == ("bought", "lent")


def given(driver, plan):
    driver.plan(plan)
    while driver.open:
        driver.answer(driver.open[0])


def trains_and_was_promised_more_elsewhere():
    driver = Driver(OFFERS)
    driver.submit(a_job("script", gpus=1, max_gpus=2))
    given(driver, Plan(shapes={"script": Shape("lent", 1)}, hold={"lent": 1}))
    driver.plan(Plan(shapes={"script": Shape("bought", 2)}, hold={"bought": 1}))
    return driver


def test_a_job_that_is_pinned_where_it_trains_does_not_go_where_it_was_promised_more_before():
    driver = trains_and_was_promised_more_elsewhere()
    (rent,) = [order for order in driver.open if isinstance(order, RentNode)]
    driver.tell(JobChanged(1.0, a_job("script", gpus=1, max_gpus=2, pools=("lent",))))
    assert driver.kernel.jobs["script"].shape == Shape("lent", 1)
    assert driver.answer(rent) == []  # the nodes that come are not for it any more
    assert driver.kernel.jobs["script"].phase is Phase.RUNNING


def test_a_job_that_may_stay_nowhere_stops_and_waits():
    driver = trains_and_was_promised_more_elsewhere()
    orders = driver.tell(JobChanged(1.0, a_job("script", gpus=1, max_gpus=2, pools=("other",))))
    assert [type(order) for order in orders] == [StopJob, MakePlan]
    assert driver.kernel.jobs["script"].shape is None


@pytest.mark.parametrize("name", plugins.names("sublet.policies"))
@pytest.mark.parametrize("where", ["lent", "bought"])
def test_no_policy_leaves_a_job_where_its_owner_does_not_let_it_run_any_more(name, where):
    driver = Driver(OFFERS, limits={offer.id: Limit(max_nodes=2) for offer in OFFERS})
    job = a_job("moved", gpus=1, max_gpus=2, work=1e6, speed=Linear())
    driver.submit(job)
    given(driver, Plan(shapes={"moved": Shape(where, 1)}, hold={where: 1}))
    (other,) = {"lent", "bought"} - {where}
    driver.tell(JobChanged(driver.now_s, replace(job, pools=(other,))))
    policy = plugins.load("sublet.policies", name)()
    driver.settle(policy)  # a plan that is refused is an error
    driver.ring(list(driver.timers))  # some start nobody again at the instant of its stop
    driver.settle(policy)
    assert driver.kernel.jobs["moved"].shape.pool == other
