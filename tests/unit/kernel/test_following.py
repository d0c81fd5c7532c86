"""A life of another version is followed: what was ordered then is what happened, whatever this one would have done."""

from __future__ import annotations

import pytest

from sublet.domain.actions import (
    MakePlan,
    PrepareJob,
    RefusePlan,
    ReleaseNode,
    RentNode,
    ResizeJob,
    StartJob,
    StopJob,
)
from sublet.domain.budget import UNLIMITED, Budget, Holder, Level
from sublet.domain.events import (
    BudgetChanged,
    JobResized,
    JobStarted,
    JobSubmitted,
    NodeReady,
    PlanMade,
    ProgressReported,
    PurseSet,
)
from sublet.domain.money import Money
from sublet.domain.plan import Phase, Plan
from sublet.domain.shape import Shape
from sublet.kernel.cluster import NodePhase
from sublet.kernel.following import Follower
from sublet.testing.values import a_job, an_offer

TWO, FOUR = Shape("p", 2), Shape("p", 4)


@pytest.fixture
def follower():
    """A node of four GPUs is ready, and a job of two waits."""
    made = Follower([an_offer("o", gpus=4, pool="p", hazard_per_h=0.1)])
    made.follow(BudgetChanged(0.0, UNLIMITED), [RentNode("n7", "o"), RentNode("odd", "o"), MakePlan()])
    made.follow(NodeReady(0.0, "n7"), [])
    made.follow(JobSubmitted(0.0, a_job("a", gpus=2, max_gpus=4)), [])
    return made


def started(follower, generation=5):
    order = StartJob("a", generation, TWO, (("n7", 2),))
    follower.follow(PlanMade(0.0, Plan(shapes={"a": TWO}), follower.seen), [order])
    follower.follow(JobStarted(1.0, "a", generation, 0.0, 1.0), [])
    return follower


def test_nodes_are_rented_and_given_back_as_recorded_and_numbered_on(follower):
    assert set(follower.cluster.nodes) == {"n7", "odd"}
    assert follower.supply.numbered == 8  # after 7 came one without a number
    follower.follow(ProgressReported(3.0, "a", 0.0), [RentNode("n3", "o")])
    assert follower.supply.numbered == 8
    assert follower.ledger.ordered_s("n3") == 3.0
    follower.follow(ProgressReported(4.0, "a", 0.0), [ReleaseNode("n3"), ReleaseNode("gone")])
    assert follower.cluster.nodes["n3"].phase is NodePhase.RELEASING
    assert follower.supply.offering.state("o", 3604.0).held_h > 1.0  # what was held has been watched


def test_nothing_is_done_of_its_own_accord(follower):
    follower.follow(PlanMade(0.0, Plan(shapes={"a": TWO}, hold={"o": 9}), follower.seen), [])
    assert len(follower.cluster.nodes) == 2
    assert follower.jobs["a"].phase is Phase.WAITING
    assert follower.jobs["a"].shape == TWO


def test_a_job_starts_moves_and_stops_as_it_was_told(follower):
    started(follower)
    state = follower.jobs["a"]
    assert (state.phase, state.generation, state.gpus, state.runs_in) == (Phase.RUNNING, 5, 2, TWO)
    follower.follow(ProgressReported(5.0, "a", 0.0), [ResizeJob("a", 8, FOUR, (("n7", 4),))])
    assert (follower.jobs["a"].phase, follower.jobs["a"].generation) == (Phase.RESIZING, 8)
    follower.follow(JobResized(6.0, "a", 8, 0.0, 6.0), [])
    assert (follower.jobs["a"].gpus, follower.jobs["a"].runs_in) == (4, FOUR)
    follower.follow(ProgressReported(7.0, "a", 0.0), [StopJob("a", 11)])
    assert (follower.jobs["a"].phase, follower.jobs["a"].generation) == (Phase.STOPPING, 11)
    follower.follow(ProgressReported(8.0, "a", 0.0), [StopJob("gone", 1), StartJob("gone", 1, TWO, (("n7", 2),))])


def test_who_holds_nothing_has_nothing_to_stop(follower):
    follower.follow(ProgressReported(1.0, "a", 0.0), [StopJob("a", 3)])
    assert (follower.jobs["a"].phase, follower.jobs["a"].generation) == (Phase.WAITING, 0)


def test_a_start_that_no_plan_promised_is_a_promise(follower):
    follower.follow(ProgressReported(1.0, "a", 0.0), [StartJob("a", 1, TWO, (("n7", 2),))])
    assert follower.jobs["a"].shape == TWO
    assert "a" not in follower.waiting
    assert follower.jobs["a"].phase is Phase.STARTING


def test_an_answer_that_is_read_otherwise_now_is_what_the_order_makes_of_it(follower):
    """Told to start while this version takes it for running: it had lost everything; or to resize while it waits."""
    started(follower)
    follower.follow(ProgressReported(5.0, "a", 0.0), [StartJob("a", 6, TWO, (("n7", 2),))])
    assert follower.jobs["a"].phase is Phase.STARTING
    other = Follower([an_offer("o", gpus=4, pool="p")])
    other.follow(BudgetChanged(0.0, UNLIMITED), [RentNode("n1", "o")])
    other.follow(NodeReady(0.0, "n1"), [])
    other.follow(JobSubmitted(0.0, a_job("a", gpus=2, max_gpus=4)), [ResizeJob("a", 1, TWO, (("n1", 2),))])
    assert other.jobs["a"].phase is Phase.RESIZING


def test_what_it_was_told_to_prepare_it_knows(follower):
    started(follower)
    follower.follow(ProgressReported(5.0, "a", 0.0), [PrepareJob("a", FOUR)])
    assert follower.tenancy.departures.prepared == {"a": FOUR}


def test_a_plan_that_was_refused_then_is_refused_and_one_that_was_not_is_taken(follower):
    above = Plan(shapes={"a": FOUR}, hold={"o": 1})
    follower.follow(PlanMade(0.0, above, follower.seen), [RefusePlan("GPUs", 9, 1)])
    assert follower.jobs["a"].shape is None
    too_wide = Plan(shapes={"a": Shape("p", 4)})
    follower.follow(PlanMade(0.0, too_wide, follower.seen), [])
    assert follower.jobs["a"].shape == FOUR
    follower.follow(PlanMade(0.0, Plan(shapes={"a": Shape("no such pool", 4)}), follower.seen), [])
    assert follower.jobs["a"].shape == FOUR


def test_news_that_cannot_be_count_and_change_nothing_but_what_was_ordered(follower):
    seen = follower.seen
    follower.follow(NodeReady(9.0, "no such node"), [RentNode("n9", "o")])
    assert (follower.seen, follower.now_s) == (seen + 1, 9.0)
    assert "n9" in follower.cluster.nodes


def test_whatever_a_purse_says_now_was_paid_then(follower):
    own = Holder(Level.JOB, "a")
    follower.follow(PurseSet(0.0, own, Money(1), None, 0.0), [])
    started(follower)
    assert follower.jobs["a"].gpus == 2


def test_on_arrival_everything_is_looked_at_anew(follower):
    follower.follow(BudgetChanged(0.0, Budget(purse=Money.from_usd(100))), [])
    follower.follow(PlanMade(0.0, Plan(shapes={"a": TWO}), follower.seen), [])
    follower.supply.purse.most_nodes, follower.spending.spent_s = 3, 99.0
    follower.arrive()
    assert "a" in follower.tenancy.lines["p"]
    assert (follower.supply.changed, follower.supply.purse.most_nodes, follower.spending.spent_s) == (True, None, None)
    assert follower.planning
    assert follower._plans.since == follower.seen


def test_on_arrival_who_has_what_it_was_promised_stands_in_no_line(follower):
    started(follower)
    follower.tenancy.lines["p"].clear()
    follower.arrive()
    assert "a" not in follower.tenancy.lines["p"]
    follower.follow(ProgressReported(5.0, "a", 0.0), [ResizeJob("a", 8, FOUR, (("n7", 4),))])
    follower.arrive()
    assert "a" in follower.tenancy.lines["p"]  # it is on its way there


def test_where_a_job_may_not_run_was_no_place_for_it_then_either(follower):
    follower.follow(JobSubmitted(0.0, a_job("b", gpus=2, pools=("elsewhere",))), [])
    follower.follow(PlanMade(0.0, Plan(shapes={"b": TWO}), follower.seen), [])
    assert follower.jobs["b"].shape is None
    narrow = a_job("c", gpus=2, min_gpus=1, max_gpus=2)
    follower.follow(JobSubmitted(0.0, narrow), [])
    follower.follow(PlanMade(0.0, Plan(shapes={"c": FOUR}), 1), [])  # before version 4 nobody looked at widths
    assert follower.jobs["c"].shape == FOUR
