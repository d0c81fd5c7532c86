"""Jobs that are to go from one pool to another: they leave for GPUs that are theirs, and not before."""

from __future__ import annotations

from sublet.domain.actions import MakePlan, SetTimer, StartJob, StopJob
from sublet.domain.budget import UNLIMITED, Limit
from sublet.domain.events import BudgetChanged, NodeReady, PlanMade, RentRefused, TimerFired
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.domain.timers import CheckPurse
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

SPOT, STEADY = Shape("spot", 1), Shape("steady", 1)


def one_that_trains(job_id="a"):
    """A job on the node of the steady pool; spot has room for two nodes and holds none."""
    limits = {"s": Limit(max_nodes=2), "d": Limit(max_nodes=2)}
    driver = Driver([an_offer("s", gpus=1, pool="spot"), an_offer("d", gpus=1, pool="steady")], limits=limits)
    driver.tell(BudgetChanged(0.0, UNLIMITED))
    driver.submit(a_job(job_id, gpus=1))
    driver.plan(Plan(shapes={job_id: STEADY}, hold={"d": 1}))
    while driver.open:
        driver.answer(driver.open[0])
    assert driver.kernel.jobs[job_id].phase is Phase.RUNNING
    return driver


def later(driver):
    return driver.kernel.now_s + 1.0


def test_a_refused_node_stops_nobody_before_the_next_plan_whatever_happens_meanwhile():
    driver = one_that_trains()
    driver.submit(a_job("b", gpus=1))
    driver.plan(Plan(shapes={"a": SPOT}, hold={"d": 1, "s": 1}))
    refused = driver.tell(RentRefused(later(driver), "n2"))
    assert [type(action) for action in refused] == [SetTimer, MakePlan]
    late = driver.tell(PlanMade(later(driver), Plan(hold={"d": 1, "s": 1}), 0))  # of a planner that knew nothing of it
    assert not any(isinstance(action, StopJob) for action in late)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    fresh = driver.tell(PlanMade(later(driver), Plan(shapes={"a": STEADY}), driver.kernel.seen))
    assert not any(isinstance(action, StopJob) for action in fresh)


def test_what_a_job_leaves_another_pool_for_is_not_given_to_those_behind_it():
    driver = one_that_trains()
    driver.submit(a_job("b", gpus=1))
    driver.plan(Plan(shapes={"a": SPOT, "b": SPOT}, hold={"d": 1, "s": 2}))
    came = driver.tell(NodeReady(later(driver), "n2"))
    assert [action.job_id for action in came if isinstance(action, StopJob)] == ["a"]
    assert not any(isinstance(action, StartJob) for action in came)
    driver.tell(RentRefused(later(driver), "n3"))
    (stop,) = [order for order in driver.open if isinstance(order, StopJob)]
    started = [action for action in driver.answer(stop) if isinstance(action, StartJob)]
    assert [(action.job_id, action.placement) for action in started] == [("a", (("n2", 1),))]


def test_two_jobs_that_change_places_by_a_plan_do_not_wait_for_each_other():
    driver = one_that_trains()
    driver.submit(a_job("b", gpus=1))
    driver.plan(Plan(shapes={"b": SPOT}, hold={"d": 1, "s": 1}))
    while driver.open:
        driver.answer(driver.open[0])
    driver.tell(TimerFired(later(driver), CheckPurse()))
    driver.plan(Plan(shapes={"a": SPOT, "b": STEADY}, hold={"d": 1, "s": 1}))
    while driver.open:
        driver.answer(driver.open[0])
    assert {job_id: state.runs_in for job_id, state in driver.kernel.jobs.items()} == {"a": SPOT, "b": STEADY}
