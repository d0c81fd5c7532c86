"""Where owners let their jobs run: the kernel sees to it, and the journal remembers it."""

from __future__ import annotations

from sublet.domain.actions import MakePlan, RefusePlan
from sublet.domain.budget import UNLIMITED
from sublet.domain.events import JobChanged, JobSubmitted, PlanMade
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.kernel.invariants import check
from sublet.kernel.journal import header_line, line_from, replay
from sublet.kernel.kernel import Kernel
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
