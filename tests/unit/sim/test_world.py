"""The agenda and the world behind it: delays, notices, losses, checkpoints, refusals; all figures by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sublet.domain.actions import (
    MakePlan,
    ReleaseNode,
    RentNode,
    ResizeJob,
    SetTimer,
    StartJob,
    StopJob,
    TellUser,
)
from sublet.domain.events import (
    AvailabilityChanged,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeNoticed,
    NodeReady,
    NodeReleased,
    PriceChanged,
    ProgressReported,
    RentRefused,
    TimerFired,
)
from sublet.domain.shape import Shape
from sublet.domain.timers import CheckPurse, PlanAgain
from sublet.sim.world import Agenda, Physics, PlanDue, Tie, World
from sublet.testing.strategies import ticks
from sublet.testing.values import a_job, an_offer

OFFER = an_offer("o", gpus=4, pool="p")
SHAPE = Shape("p", 4)


def world(*changes, seed=0, **physics):
    return World([OFFER], Physics(**physics), np.random.default_rng(seed), changes)


def fall(at_s, nodes):
    return AvailabilityChanged(at_s, "o", nodes)


def rent(here, *node_ids, at_s=0.0):
    return [event for node_id in node_ids for event in here.obey(at_s, RentNode(node_id, "o"))]


def train(here, job, *nodes, at_s=0.0, generation=1):
    here.occur(at_s, JobSubmitted(at_s, job))
    placement = tuple((node, 4) for node in nodes)
    return here.obey(at_s, StartJob(job.id, generation, Shape("p", 4 * len(nodes)), placement))


def passing(here):
    """Everything that is going to happen, in order, as the kernel would hear it."""
    heard = []
    while len(here.agenda):
        at_s, what = here.agenda.pop()
        heard += here.occur(at_s, what)
    return heard


def only(events, *kinds):
    return [event for event in events if isinstance(event, kinds)]


# ---------------------------------------------------------------------- the agenda


def test_the_agenda_gives_the_earliest_first():
    agenda = Agenda()
    for at_s in (3.0, 1.0, 2.0):
        agenda.put(at_s, Tie.JOB, f"at {at_s}")
    assert [agenda.pop() for _ in range(len(agenda))] == [(1.0, "at 1.0"), (2.0, "at 2.0"), (3.0, "at 3.0")]


def test_at_one_instant_the_market_comes_first_and_the_planner_last():
    agenda = Agenda()
    for tie in (Tie.PLANNER, Tie.ARRIVAL, Tie.TIMER, Tie.NODE, Tie.MARKET, Tie.JOB):
        agenda.put(1.0, tie, tie.name)
    assert [agenda.pop()[1] for _ in range(6)] == ["MARKET", "NODE", "JOB", "ARRIVAL", "TIMER", "PLANNER"]


@given(st.lists(st.tuples(ticks, st.sampled_from(Tie)), max_size=30))
def test_ties_of_one_kind_go_to_whoever_was_put_first(entries):
    agenda = Agenda()
    for number, (at_s, tie) in enumerate(entries):
        agenda.put(at_s, tie, (at_s, tie, number))
    popped = [agenda.pop()[1] for _ in entries]
    assert popped == sorted((at_s, tie, number) for number, (at_s, tie) in enumerate(entries))


def test_the_agenda_knows_how_many_of_its_entries_are_timers():
    agenda = Agenda()
    agenda.put(1.0, Tie.TIMER, "a")
    agenda.put(0.0, Tie.JOB, "b")
    assert (len(agenda), agenda.timers) == (2, 1)
    agenda.pop()
    agenda.pop()
    assert (len(agenda), agenda.timers) == (0, 0)


# ---------------------------------------------------------------------- renting and giving back


def test_without_delays_a_node_is_ready_and_gone_at_once():
    here = world()
    assert rent(here, "n1", at_s=5.0) == [NodeReady(5.0, "n1")]
    assert here.obey(6.0, ReleaseNode("n1")) == [NodeReleased(6.0, "n1")]


def test_a_node_boots_and_leaves_as_long_as_physics_say():
    here = world(provision_s=40.0, release_s=10.0)
    assert rent(here, "n1", at_s=5.0) == []
    assert passing(here) == [NodeReady(45.0, "n1")]
    assert here.obey(50.0, ReleaseNode("n1")) == []
    assert passing(here) == [NodeReleased(60.0, "n1")]


def test_a_node_given_back_while_it_boots_is_still_heard_of():
    here = world(provision_s=40.0, release_s=10.0)
    rent(here, "n1")
    here.obey(35.0, ReleaseNode("n1"))
    assert passing(here) == [NodeReady(40.0, "n1"), NodeReleased(45.0, "n1")]


def test_more_nodes_than_there_are_is_refused():
    here = world(fall(0.0, 1))
    passing(here)
    assert rent(here, "n1", "n2", at_s=1.0) == [NodeReady(1.0, "n1"), RentRefused(1.0, "n2")]


def test_a_node_on_its_way_out_still_counts():
    here = world(fall(0.0, 1), release_s=10.0)
    passing(here)
    rent(here, "n1")
    here.obey(1.0, ReleaseNode("n1"))
    assert rent(here, "n2", at_s=2.0) == [RentRefused(2.0, "n2")]
    passing(here)
    assert rent(here, "n3", at_s=11.0) == [NodeReady(11.0, "n3")]


def test_unknown_supply_is_no_end_of_supply_and_can_come_back():
    here = world(fall(0.0, 0), fall(10.0, None))
    passing(here)
    assert len(only(rent(here, *(f"n{n}" for n in range(50)), at_s=10.0), NodeReady)) == 50


def test_a_node_lost_while_it_boots_is_never_ready():
    here = world(fall(20.0, 0), provision_s=40.0, notice_s=0.0)
    rent(here, "n1")
    assert only(passing(here), NodeReady, NodeLost) == [NodeLost(20.0, "n1")]


# ---------------------------------------------------------------------- notices and losses


def test_a_notice_comes_its_time_before_the_loss():
    here = world(fall(500.0, 0), notice_s=120.0)
    rent(here, "n1")
    assert passing(here) == [NodeNoticed(380.0, "n1", 500.0), fall(500.0, 0), NodeLost(500.0, "n1")]


def test_a_notice_is_shorter_when_the_fall_is_near():
    here = world(fall(50.0, 0), notice_s=120.0)
    rent(here, "n1")
    assert passing(here)[0] == NodeNoticed(0.0, "n1", 50.0)


def test_where_no_notice_is_given_a_node_is_just_lost():
    here = world(fall(50.0, 0), notice_s=0.0)
    rent(here, "n1")
    assert passing(here) == [fall(50.0, 0), NodeLost(50.0, "n1")]


@pytest.mark.parametrize("crowd", [0, 1, 2, 5])
def test_a_notice_comes_in_time_however_many_changes_come_shortly_before_the_fall(crowd):
    chatter = [PriceChanged(1000.0 + n, "o", OFFER.price) for n in range(crowd)]
    here = world(fall(0.0, 1), *chatter, fall(1010.0, 0), notice_s=120.0)
    rent(here, "n1")
    assert only(passing(here), NodeNoticed) == [NodeNoticed(890.0, "n1", 1010.0)]


@given(st.floats(1.0, 1e6), st.floats(0.001, 500.0))
@example(440.60439168555996, 108.40478408397772)  # at - notice + notice < at
def test_rounding_does_not_stop_the_market(at_s, notice_s):
    here = world(fall(at_s, 0), notice_s=notice_s)
    rent(here, "n1")
    heard = []
    for _ in range(10):  # a fall, its notice, and a few steps to get there
        if len(here.agenda):
            heard += here.occur(*here.agenda.pop())
    assert only(heard, NodeLost) == [NodeLost(at_s, "n1")]
    assert only(heard, NodeNoticed)[0].at_s == pytest.approx(max(0.0, at_s - notice_s), abs=1e-6)


def test_several_falls_at_one_instant_are_all_noticed_in_time():
    offers = [an_offer(name, pool="p") for name in "abcd"]
    changes = [AvailabilityChanged(1000.0, offer.id, 0) for offer in offers]
    here = World(offers, Physics(notice_s=120.0), np.random.default_rng(0), changes)
    for offer in offers:
        here.obey(0.0, RentNode(f"n{offer.id}", offer.id))
    told = only(passing(here), NodeNoticed)
    assert [(event.at_s, event.node_id) for event in told] == [(880.0, f"n{name}") for name in "abcd"]


def test_only_as_many_nodes_are_taken_as_there_are_too_many():
    here = world(fall(100.0, 2), notice_s=30.0)
    rent(here, *(f"n{n}" for n in range(5)))
    heard = passing(here)
    noticed, lost = only(heard, NodeNoticed), only(heard, NodeLost)
    assert len(noticed) == 3
    assert sorted(event.node_id for event in noticed) == sorted(event.node_id for event in lost)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 1000), st.booleans())
def test_victims_are_nodes_that_are_held(held, left, seed, noticed):
    here = world(fall(100.0, left), seed=seed, notice_s=30.0 if noticed else 0.0)
    rent(here, *(f"n{n}" for n in range(held)))
    for node_id in ("n0", "n1")[: held // 2]:
        here.obey(1.0, ReleaseNode(node_id))
    staying = {f"n{n}" for n in range(held)} - set(("n0", "n1")[: held // 2])
    lost = only(passing(here), NodeLost)
    assert {event.node_id for event in lost} <= staying
    assert len({event.node_id for event in lost}) == len(lost) == max(0, len(staying) - left)


def test_a_rise_takes_nothing():
    here = world(fall(10.0, 3), fall(20.0, 5), notice_s=0.0)
    rent(here, "n1", "n2")
    assert only(passing(here), NodeLost) == []


def test_chance_is_handed_in_and_decides_who_goes():
    def victims(seed):
        here = world(fall(100.0, 5), seed=seed, notice_s=0.0)
        rent(here, *(f"n{n}" for n in range(10)))
        return [event.node_id for event in only(passing(here), NodeLost)]

    assert victims(1) == victims(1)
    assert len({tuple(victims(seed)) for seed in range(5)}) > 1


# ---------------------------------------------------------------------- training


def test_a_job_pauses_trains_and_finishes():
    here = world()
    rent(here, "n1")
    assert train(here, a_job(work=100.0, restart_s=7.0), "n1", at_s=3.0) == [JobStarted(3.0, "a", 1, 0.0, 10.0)]
    assert passing(here) == [JobFinished(35.0, "a")]  # four GPUs: 25 seconds of work after 10


def test_a_resize_takes_along_what_is_done_and_pauses_again():
    here = world()
    rent(here, "n1", "n2")
    train(here, a_job(work=100.0, restart_s=5.0), "n1")
    order = ResizeJob("a", 2, Shape("p", 8), (("n1", 4), ("n2", 4)))
    assert here.obey(15.0, order) == [JobResized(15.0, "a", 2, 40.0, 20.0)]
    assert passing(here) == [JobFinished(27.5, "a")]  # 60 left on eight GPUs; the end planned before is void


def test_a_job_moved_during_its_pause_has_done_nothing_meanwhile():
    here = world()
    rent(here, "n1", "n2")
    train(here, a_job(work=100.0, restart_s=10.0), "n1")
    (answer,) = here.obey(9.0, ResizeJob("a", 2, SHAPE, (("n2", 4),)))
    assert (answer.done, answer.resumes_s) == (0.0, 19.0)


def test_a_stopped_job_says_how_far_it_came_and_does_not_finish():
    here = world()
    rent(here, "n1")
    train(here, a_job(work=100.0), "n1")
    assert here.obey(10.0, StopJob("a", 2)) == [JobStopped(10.0, "a", 2, 40.0)]
    assert passing(here) == []
    assert here.obey(50.0, StartJob("a", 3, SHAPE, (("n1", 4),))) == [JobStarted(50.0, "a", 3, 40.0, 50.0)]
    assert passing(here) == [JobFinished(65.0, "a")]


def test_a_job_stopped_for_good_is_not_heard_of_again():
    here = world()
    rent(here, "n1")
    train(here, a_job(work=100.0), "n1")
    assert here.obey(10.0, StopJob("a", 2, resumable=False)) == []
    assert passing(here) == []


# ---------------------------------------------------------------------- work lost


def lost_at(at_s, *, notice_s=0.0, **job):
    """What a job of 4 GPUs that started at 0 has after its node was lost."""
    here = world(fall(at_s, 0), notice_s=notice_s)
    rent(here, "n1")
    train(here, a_job(work=1e6, **job), "n1")
    heard = passing(here)
    (progress,) = only(heard, ProgressReported)
    assert heard.index(progress) > heard.index(NodeLost(at_s, "n1"))
    return progress.done


@pytest.mark.parametrize(
    ("at_s", "done"),
    [(29.0, 0.0), (30.0, 120.0), (59.9, 120.0), (60.0, 240.0), (100.0, 360.0)],
)
def test_without_notice_a_job_falls_back_to_its_last_checkpoint(at_s, done):
    assert lost_at(at_s, checkpoint_every_s=30.0) == pytest.approx(done)


def test_checkpoints_are_counted_from_when_training_began():
    assert lost_at(100.0, checkpoint_every_s=30.0, restart_s=15.0) == pytest.approx(2 * 30 * 4)  # at 45 and 75


def test_a_job_without_checkpoints_falls_back_to_where_it_started():
    assert lost_at(100.0) == 0.0


@pytest.mark.parametrize(("write_s", "done"), [(0.0, 400.0), (20.0, 400.0), (20.1, 360.0), (500.0, 360.0)])
def test_a_notice_as_long_as_writing_a_checkpoint_loses_nothing_and_a_shorter_one_does(write_s, done):
    assert lost_at(100.0, notice_s=20.0, checkpoint_write_s=write_s, checkpoint_every_s=30.0) == pytest.approx(done)


def test_a_loss_during_the_pause_loses_nothing():
    assert lost_at(5.0, restart_s=10.0, checkpoint_every_s=1.0) == 0.0


def test_a_broken_job_does_not_finish_and_goes_on_from_its_checkpoint():
    here = world(fall(50.0, 1), notice_s=0.0)
    rent(here, "n1", "n2")
    train(here, a_job(work=800.0, checkpoint_every_s=40.0), "n1", "n2")
    heard = passing(here)
    assert only(heard, JobFinished) == []
    assert only(heard, ProgressReported) == [ProgressReported(50.0, "a", 320.0)]
    (node,) = {"n1", "n2"} - {event.node_id for event in only(heard, NodeLost)}
    assert here.obey(50.0, ResizeJob("a", 2, SHAPE, ((node, 4),))) == [JobResized(50.0, "a", 2, 320.0, 50.0)]
    assert passing(here) == [JobFinished(170.0, "a")]


def test_a_job_that_loses_two_nodes_at_once_falls_back_once():
    here = world(fall(50.0, 0), notice_s=0.0)
    rent(here, "n1", "n2")
    train(here, a_job(work=1e6, checkpoint_every_s=40.0), "n1", "n2")
    assert {event.done for event in only(passing(here), ProgressReported)} == {320.0}


def test_a_job_ordered_to_a_node_that_was_lost_at_this_instant_waits_for_the_next_order():
    """Several nodes go at once; the kernel hears of them one by one and may order a job to the next to go."""
    here = world(fall(100.0, 0), notice_s=0.0)
    rent(here, "n1", "n2")
    train(here, a_job("j", work=1e6, restart_s=10.0), "n1")
    told = passing(here)
    assert [event.node_id for event in only(told, NodeLost)] == ["n1", "n2"]
    assert here.obey(100.0, ResizeJob("j", 2, Shape("p", 4), (("n2", 4),))) == []
    here.occur(200.0, fall(200.0, 1))
    rent(here, "n3", at_s=200.0)
    (moved,) = here.obey(200.0, ResizeJob("j", 3, Shape("p", 4), (("n3", 4),)))
    assert (moved.generation, moved.resumes_s) == (3, 210.0)


def test_only_jobs_on_the_lost_node_lose_work():
    here = world(fall(50.0, 1), notice_s=0.0)
    rent(here, "n1", "n2")
    train(here, a_job("a", work=1e6), "n1")
    train(here, a_job("b", work=1e6), "n2")
    heard = passing(here)
    (lost,) = only(heard, NodeLost)
    assert [event.job_id for event in only(heard, ProgressReported)] == [{"n1": "a", "n2": "b"}[lost.node_id]]


# ---------------------------------------------------------------------- timers and planning


def test_a_timer_fires_at_its_time_and_one_set_anew_only_then():
    here = world()
    here.obey(0.0, SetTimer(PlanAgain(), 10.0))
    here.obey(0.0, SetTimer(CheckPurse(), 12.0))
    here.obey(5.0, SetTimer(PlanAgain(), 15.0))
    assert passing(here) == [TimerFired(12.0, CheckPurse()), TimerFired(15.0, PlanAgain())]


def test_a_timer_for_the_past_fires_now():
    here = world()
    here.obey(5.0, SetTimer(PlanAgain(), 1.0))
    assert passing(here) == [TimerFired(5.0, PlanAgain())]


@pytest.mark.parametrize(
    ("round_s", "at_s", "due_s"), [(0.0, 7.0, 7.0), (60.0, 0.0, 0.0), (60.0, 7.0, 60.0), (60.0, 60.0, 60.0)]
)
def test_the_planner_is_asked_at_once_or_at_the_next_round(round_s, at_s, due_s):
    here = world(round_s=round_s)
    assert here.obey(at_s, MakePlan()) == []
    assert here.agenda.pop() == (due_s, PlanDue())


@given(st.integers(1, 3000), st.sampled_from([0.1, 0.3, 0.7, 1.1, 3.3, 49.1, 60.1]), st.booleans())
def test_the_planner_is_never_asked_in_the_past(count, round_s, after):
    at_s = count * round_s
    at_s = math.nextafter(at_s, math.inf) if after else at_s
    here = world(round_s=round_s)
    here.obey(at_s, MakePlan())
    assert at_s <= here.agenda.pop()[0] <= at_s + round_s * (1 + 1e-9)


def test_a_word_to_the_user_has_no_consequences():
    here = world()
    assert here.obey(0.0, TellUser("hello")) == []
    assert len(here.agenda) == 0


def test_a_cloud_that_does_not_say_what_it_has_is_heard_by_asking():
    silent = world(AvailabilityChanged(5.0, "o", 1), AvailabilityChanged(9.0, "o", 0), notice_s=0.0, says_supply=False)
    assert silent.obey(0.0, RentNode("n1", "o")) == [NodeReady(0.0, "n1")]
    heard = []
    while len(silent.agenda):
        heard += silent.occur(*silent.agenda.pop())
    assert heard == [NodeLost(9.0, "n1")]
    assert silent.obey(9.0, RentNode("n2", "o")) == [RentRefused(9.0, "n2")]
