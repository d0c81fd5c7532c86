"""A job's life in the kernel, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.actions import MakePlan, ReleaseNode, RentNode, ResizeJob, StartJob, StopJob
from sublet.domain.events import (
    JobCancelled,
    JobChanged,
    JobFailed,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReady,
    PlanMade,
    ProgressReported,
)
from sublet.domain.plan import Phase, Plan, arrival
from sublet.domain.shape import Shape
from sublet.errors import UnexpectedEvent
from sublet.perf.speedup import Linear
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


def p(gpus, **facts):
    return Shape("p", gpus, **facts)


def running(town, *jobs):
    """These jobs run, at the size they ask for."""
    town.submit(*jobs)
    town.plan(Plan(shapes={job.id: p(job.gpus) for job in jobs}))
    for order in list(town.open):
        town.answer(order)
    assert all(town.kernel.jobs[job.id].phase is Phase.RUNNING for job in jobs)
    return town


# ---------------------------------------------------------------------- start


def test_a_new_job_waits_and_calls_for_a_plan(town):
    assert town.submit(a_job("a")) == [MakePlan()]
    assert list(town.kernel.jobs) == ["a"]
    assert "a" in town.kernel.waiting
    assert town.kernel.active == {}


def test_a_planned_job_starts_on_as_few_nodes_as_possible(town):
    town.submit(a_job("a", gpus=4))
    assert town.plan(Plan(shapes={"a": p(4)})) == [StartJob("a", 1, p(4), (("n1", 4),))]
    state = town.kernel.jobs["a"]
    assert (state.phase, state.gpus, state.spread, state.generation) == (Phase.STARTING, 4, (4,), 1)
    assert "a" not in town.kernel.waiting


def test_a_started_job_trains_from_when_it_resumes(town):
    town.submit(a_job("a", gpus=4))
    town.plan(Plan(shapes={"a": p(4)}))
    assert town.tell(JobStarted(5.0, "a", 1, 3.0, 10.0)) == []
    state = town.kernel.active["a"]
    assert state.phase is Phase.RUNNING
    assert (state.done_at(10.0), state.done_at(12.0)) == (3.0, 11.0)  # four GPUs, two seconds


def test_a_promised_job_starts_when_its_node_is_there():
    driver = Driver([an_offer("o", gpus=4, pool="p")])
    driver.submit(a_job("a", gpus=4))
    assert driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1})) == [RentNode("n1", "o")]
    assert driver.kernel.active["a"].phase is Phase.WAITING
    assert driver.tell(NodeReady(30.0, "n1")) == [StartJob("a", 1, p(4), (("n1", 4),))]


def test_whoever_the_plan_names_first_gets_gpus_first(town):
    running(town, a_job("a", gpus=4))
    town.submit(a_job("b", gpus=4), a_job("c", gpus=4))
    orders = town.plan(Plan(shapes={"a": None, "c": p(4), "b": p(4)}))
    assert orders == [StopJob("a", 2), StartJob("c", 1, p(4), (("n2", 4),))]


# ---------------------------------------------------------------------- resize


def test_those_that_give_come_before_those_that_get(town):
    running(town, a_job("a", gpus=8))
    town.submit(a_job("b", gpus=4))
    orders = town.plan(Plan(shapes={"b": p(4), "a": p(4)}))  # the getter is named first
    assert orders == [ResizeJob("a", 2, p(4), (("n2", 4),))]
    assert town.answer(orders[0]) == [StartJob("b", 1, p(4), (("n1", 4),))]


def test_gpus_are_free_only_when_the_job_that_leaves_them_has_left(town):
    running(town, a_job("a", gpus=8))
    town.plan(Plan(shapes={"a": p(2)}))
    assert town.kernel.cluster.free_gpus["p"] == 0
    assert town.tell(JobResized(1.0, "a", 2, 0.0, 1.0)) == []
    assert town.kernel.cluster.free_gpus["p"] == 6


def test_a_growing_job_keeps_its_gpus_and_gets_more(town):
    running(town, a_job("a", gpus=2, max_gpus=8))
    assert town.plan(Plan(shapes={"a": p(6)})) == [ResizeJob("a", 2, p(6), (("n1", 4), ("n2", 2)))]


def test_another_batch_size_is_a_resize_in_place(town):
    running(town, a_job("a", gpus=4))
    shape = p(4, batch=64)
    assert town.plan(Plan(shapes={"a": shape})) == [ResizeJob("a", 2, shape, (("n1", 4),))]
    assert town.answer(town.open[0]) == []


def test_a_shape_that_it_has_already_orders_nothing(town):
    running(town, a_job("a", gpus=4))
    assert town.plan(Plan(shapes={"a": p(4)})) == []


def test_a_change_of_mind_in_transit_waits_for_the_answer(town):
    town.submit(a_job("a", gpus=4))
    (start,) = town.plan(Plan(shapes={"a": p(4)}))
    assert town.plan(Plan(shapes={"a": p(2)})) == []
    (resize,) = town.answer(start)
    assert resize == ResizeJob("a", 2, p(2), (("n1", 2),))
    assert town.plan(Plan(shapes={"a": None})) == []
    assert town.answer(resize) == [StopJob("a", 3)]


def test_a_job_that_cannot_grow_yet_stands_in_line_until_it_can(town):
    running(town, a_job("a", gpus=4, max_gpus=8), a_job("b", gpus=4))
    town.submit(a_job("c"))
    assert town.tell(PlanMade(0.0, Plan(shapes={"a": p(8)}), 0)) == [
        MakePlan()
    ]  # it saw nothing, and promises too much
    assert town.tell(JobFinished(9.0, "b")) == [ResizeJob("a", 2, p(8), (("n1", 4), ("n2", 4)))]


def test_a_move_to_another_pool_is_a_stop_and_a_start():
    driver = Driver([an_offer("o", pool="p"), an_offer("q", gpus=8, gpu="A100", pool="q")])
    driver.submit(a_job("a", gpus=4, max_gpus=8))
    driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1, "q": 1}))
    for order in list(driver.open):
        driver.answer(order)
    driver.answer(driver.open[0])
    (stop,) = driver.plan(Plan(shapes={"a": Shape("q", 8)}))
    assert stop == StopJob("a", 2)
    assert driver.answer(stop) == [StartJob("a", 3, Shape("q", 8), (("n2", 8),))]
    assert driver.kernel.jobs["a"].gpu == "A100"


# ---------------------------------------------------------------------- stop


def test_a_stopped_job_waits_with_its_work_behind_it(town):
    running(town, a_job("a", gpus=4, work=1000.0))
    assert town.plan(Plan(shapes={"a": None})) == [StopJob("a", 2)]
    assert town.kernel.jobs["a"].phase is Phase.STOPPING
    assert town.kernel.cluster.free_gpus["p"] == 4
    town.tell(JobStopped(7.0, "a", 2, 28.0))
    state = town.kernel.jobs["a"]
    assert (state.phase, state.done, state.gpus, state.gpu_s) == (Phase.WAITING, 28.0, 0, 28.0)
    assert [s.job.id for s in town.kernel.waiting.by(arrival)] == ["a"]
    assert town.kernel.cluster.free_gpus["p"] == 8


def test_gpus_of_a_stopped_job_go_to_the_next_in_line(town):
    running(town, a_job("a", gpus=8))
    town.submit(a_job("b", gpus=8))
    (stop,) = town.plan(Plan(shapes={"b": p(8), "a": None}))
    assert town.answer(stop)[0] == StartJob("b", 1, p(8), (("n1", 4), ("n2", 4)))


def test_a_job_that_begins_to_wait_again_calls_for_a_plan(town):
    running(town, a_job("a", gpus=4))
    (stop,) = town.plan(Plan(shapes={"a": None}))
    assert town.answer(stop) == [MakePlan()]


def test_a_job_promised_gpus_again_while_it_stops_starts_again(town):
    running(town, a_job("a", gpus=4, max_gpus=8))
    (stop,) = town.plan(Plan(shapes={"a": None}))
    assert town.plan(Plan(shapes={"a": p(8)})) == []
    (again,) = town.answer(stop)
    assert (type(again), again.generation, dict(again.placement)) == (StartJob, 3, {"n1": 4, "n2": 4})


def test_a_promise_not_yet_kept_is_withdrawn_without_an_order(town):
    running(town, a_job("a", gpus=8))
    town.submit(a_job("b", gpus=8))
    town.plan(Plan(shapes={"a": None, "b": p(8)}))
    assert town.plan(Plan(shapes={"b": None})) == []
    assert "b" in town.kernel.waiting


# ---------------------------------------------------------------------- end


@pytest.mark.parametrize("ending", [JobFinished(9.0, "a"), JobFailed(9.0, "a", "out of memory")])
def test_an_ended_job_leaves_its_gpus_to_the_next_in_line(town, ending):
    running(town, a_job("a", gpus=4), a_job("b", gpus=4))
    town.submit(a_job("c", gpus=4))
    town.tell(PlanMade(0.0, Plan(shapes={"c": p(4)}), 0))  # it saw nothing, so it may promise too much
    assert town.tell(ending)[0] == StartJob("c", 1, p(4), (("n1", 4),))
    assert sorted(town.kernel.jobs) == ["b", "c"]
    assert town.kernel.story("a") == []


def test_a_cancelled_job_that_runs_is_stopped_for_good(town):
    running(town, a_job("a", gpus=8))
    town.submit(a_job("b", gpus=8))
    town.tell(PlanMade(0.0, Plan(shapes={"b": p(8)}), 0))
    orders = town.tell(JobCancelled(9.0, "a"))
    assert orders[0] == StopJob("a", 2, resumable=False)
    assert orders[1] == StartJob("b", 1, p(8), (("n1", 4), ("n2", 4)))


def test_a_cancelled_job_that_waits_just_goes(town):
    town.submit(a_job("a"))
    town.plan(Plan())
    assert town.tell(JobCancelled(9.0, "a")) == [MakePlan()]
    assert town.kernel.jobs == {}
    assert len(town.kernel.waiting) == 0


def test_a_pause_in_a_move_stops_the_job_at_once(town):
    """A move is paid for, and its end may never come."""
    job = a_job("a", gpus=8)
    running(town, job)
    town.plan(Plan(shapes={"a": p(4)}))
    assert town.kernel.jobs["a"].phase is Phase.RESIZING
    assert StopJob("a", 3) in town.tell(JobChanged(9.0, replace(job, paused=True)))
    town.tell(JobStopped(10.0, "a", 3, 5.0))
    assert town.kernel.tenancy.placement.get("a", ()) == town.kernel.tenancy.leaving.get("a", ()) == ()


def test_a_paused_job_stops_is_seen_by_nobody_and_waits_again_when_it_may_go_on(town):
    job = a_job("a", gpus=8)
    running(town, job)
    assert town.tell(JobChanged(9.0, replace(job, paused=True))) == [StopJob("a", 2), MakePlan()]
    assert not town.kernel.active
    assert len(town.kernel.waiting) == 0
    town.tell(JobStopped(10.0, "a", 2, 5.0))
    assert len(town.kernel.waiting) == 0
    town.tell(PlanMade(10.0, Plan(shapes={"a": p(8)}), 0))  # made before the pause: of no account
    assert town.kernel.jobs["a"].shape is None
    town.tell(JobChanged(11.0, job))
    assert len(town.kernel.waiting) == 1
    assert town.kernel.jobs["a"].done == 5.0


def test_what_was_done_at_the_speed_believed_before_stays_done(town):
    job = a_job("a", gpus=8, work=1000.0)
    running(town, job)
    before = town.kernel.jobs["a"].done_at(10.0)
    town.tell(JobChanged(10.0, replace(job, speed=Linear(kinds={"none": 1.0}))))
    assert before > 0
    assert town.kernel.jobs["a"].done_at(50.0) == before


def test_nodes_rented_for_a_job_are_given_back_when_it_ends():
    driver = Driver([an_offer("o", pool="p")])
    driver.submit(a_job("a", gpus=4))
    driver.plan(Plan(shapes={"a": p(4)}, hold={"o": 1}))
    for _ in range(2):
        driver.answer(driver.open[0])
    assert driver.tell(JobFinished(9.0, "a")) == [MakePlan()]
    assert driver.plan(Plan(hold={"o": 0})) == [ReleaseNode("n1")]


# ---------------------------------------------------------------------- late news


def test_an_answer_to_an_older_order_is_ignored(town):
    running(town, a_job("a", gpus=4))
    town.plan(Plan(shapes={"a": p(2)}))
    assert town.tell(JobResized(1.0, "a", 1, 99.0, 1.0)) == []
    assert town.tell(JobStopped(1.0, "a", 1, 99.0)) == []
    assert town.tell(JobStarted(1.0, "a", 1, 99.0, 1.0)) == []
    state = town.kernel.jobs["a"]
    assert (state.phase, state.generation) == (Phase.RESIZING, 2)
    assert state.done != 99.0


@pytest.mark.parametrize(
    "news",
    [
        JobStarted(9.0, "a", 1, 0.0, 9.0),
        JobResized(9.0, "a", 2, 0.0, 9.0),
        JobStopped(9.0, "a", 2, 0.0),
        ProgressReported(9.0, "a", 5.0),
    ],
)
def test_news_of_a_job_that_has_ended_are_ignored(town, news):
    running(town, a_job("a", gpus=4))
    town.tell(JobFinished(8.0, "a"))
    town.plan(Plan())
    assert town.tell(news) == []
    assert town.kernel.jobs == {}


def test_an_answer_that_comes_twice_is_heard_once(town):
    running(town, a_job("a", gpus=4))
    assert town.tell(JobStarted(50.0, "a", 1, 7.0, 50.0)) == []
    assert town.kernel.jobs["a"].done == 0.0


def test_a_job_told_to_stop_cannot_answer_that_it_started(town):
    running(town, a_job("a", gpus=4))
    town.plan(Plan(shapes={"a": None}))
    with pytest.raises(UnexpectedEvent, match="told to stop") as caught:
        town.tell(JobStarted(1.0, "a", 2, 0.0, 1.0))
    assert list(caught.value.story) == town.kernel.story("a")


# ---------------------------------------------------------------------- progress


def test_progress_replaces_the_estimate_even_downwards(town):
    running(town, a_job("a", gpus=4, work=1000.0))
    town.tell(ProgressReported(10.0, "a", 25.0))
    state = town.kernel.jobs["a"]
    assert (state.done_at(10.0), state.done_at(11.0)) == (25.0, 29.0)


def test_a_report_during_a_pause_does_not_end_the_pause(town):
    town.submit(a_job("a", gpus=4))
    town.plan(Plan(shapes={"a": p(4)}))
    town.tell(JobStarted(0.0, "a", 1, 0.0, 60.0))
    town.tell(ProgressReported(10.0, "a", 1.0))
    assert town.kernel.jobs["a"].done_at(60.0) == 1.0


def test_the_queue_hears_how_far_a_waiting_job_is(town):
    town.submit(a_job("a"), a_job("b"))

    def by_done(state):
        return -state.done

    assert [s.job.id for s in town.kernel.waiting.by(by_done)] == ["a", "b"]
    town.tell(ProgressReported(1.0, "b", 5.0))
    assert [s.job.id for s in town.kernel.waiting.by(by_done)] == ["b", "a"]


def test_attained_service_grows_with_the_gpus_held(town):
    running(town, a_job("a", gpus=4, max_gpus=8, work=1e6))
    town.now_s = 10.0
    (resize,) = town.plan(Plan(shapes={"a": p(8)}))
    town.now_s = 12.0
    town.answer(resize)
    assert town.kernel.jobs["a"].attained_gpu_s(15.0) == 4 * 10.0 + 8 * 5.0


# ---------------------------------------------------------------------- what cannot be


def test_a_job_cannot_be_submitted_twice_and_the_error_tells_its_story(town):
    running(town, a_job("a", gpus=4))
    with pytest.raises(UnexpectedEvent, match="here already") as caught:
        town.tell(JobSubmitted(1.0, a_job("a")))
    kinds = [line.partition("(")[0] for line in caught.value.story]
    assert kinds == ["JobSubmitted", "StartJob", "JobStarted"]
    assert str(caught.value).endswith(caught.value.story[-1])


@pytest.mark.parametrize("event", [JobFinished(1.0, "x"), JobFailed(1.0, "x", "why"), JobCancelled(1.0, "x")])
def test_a_job_that_was_never_here_cannot_end(town, event):
    with pytest.raises(UnexpectedEvent, match="no such job") as caught:
        town.tell(event)
    assert caught.value.event == event


def test_a_name_can_be_used_again_once_its_job_has_ended(town):
    running(town, a_job("a", gpus=4))
    town.tell(JobFinished(1.0, "a"))
    town.submit(a_job("a"))
    assert town.kernel.jobs["a"].phase is Phase.WAITING
    assert len(town.kernel.story("a")) == 1


# ---------------------------------------------------------------------- survivors


def losing_one_of_two(**facts):
    """A job of eight on two nodes that has just lost the second; how long a new node takes is the offer's."""
    driver = Driver([an_offer("o", pool="p", **facts)])
    driver.submit(a_job("a", gpus=8, min_gpus=4, restart_s=10.0))
    driver.plan(Plan(shapes={"a": p(8)}, hold={"o": 2}))
    for _ in range(3):
        for order in list(driver.open):
            driver.answer(order)
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    return driver, driver.tell(NodeLost(driver.now_s, "n2"))


def test_survivors_of_a_loss_train_while_a_new_node_boots():
    driver, orders = losing_one_of_two(boot_s=300.0)
    assert ResizeJob("a", 2, p(4), (("n1", 4),)) in orders
    assert driver.kernel.jobs["a"].shape == p(8)  # it is still promised what it had
    for _ in range(4):
        for order in [order for order in driver.open if not isinstance(order, MakePlan)]:
            driver.answer(order)
    assert driver.kernel.jobs["a"].gpus == 8


def test_survivors_wait_for_a_node_that_comes_sooner_than_two_pauses():
    _, orders = losing_one_of_two(boot_s=15.0)
    assert not any(isinstance(order, ResizeJob) for order in orders)
