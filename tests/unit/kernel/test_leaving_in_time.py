"""When a job has to leave nodes that will be taken, who may stay until then, and who is woken: told step by step."""

from __future__ import annotations

import math

import pytest

from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Grid, Shape
from sublet.kernel.cluster import Cluster, NodePhase
from sublet.kernel.departures import Departures
from sublet.testing.values import a_job, an_offer

JOB = a_job("a", gpus=4, max_gpus=8, lead_s=5.0)  # and two seconds to spare
AT_ONCE, NEVER = -math.inf, math.inf


@pytest.fixture
def departures():
    """Three nodes of two GPUs; the first two will be taken, at 100 s and at 60 s; "a" is on all, "b" on the last."""
    cluster = Cluster()
    for node_id in ("n1", "n2", "n3"):
        cluster.add(node_id, an_offer("o", gpus=2, pool="p"))
        cluster.ready(cluster.nodes[node_id])
        cluster.take("a", node_id, 1)
    cluster.take("b", "n3", 1)
    made = Departures(cluster)
    for node_id, taken_s in (("n1", 100.0), ("n2", 60.0)):
        cluster.withdraw(cluster.nodes[node_id], NodePhase.NOTICED)
        made.announce(node_id, taken_s)
    return made


def on(*nodes):
    return tuple((node, 1) for node in nodes)


def test_it_leaves_the_first_that_is_taken_as_long_before_as_it_needs_and_two_seconds(departures):
    assert departures.due_s(JOB, on("n1")) == 93.0
    assert departures.due_s(JOB, on("n3", "n1", "n2")) == 53.0
    assert departures.due_s(JOB, on("n3")) == departures.due_s(JOB, ()) == NEVER
    assert departures.due_s(a_job("a"), on("n3", "n1")) == AT_ONCE  # it does not say how long it needs
    assert departures.due_s(a_job("a"), on("n3")) == NEVER


def test_where_nobody_says_when_it_is_taken_nobody_stays(departures):
    departures.forget("n1")
    assert departures.due_s(JOB, on("n1")) == AT_ONCE
    departures.announce("n1", math.inf)
    assert departures.due_s(JOB, on("n1")) == AT_ONCE
    departures.forget("n1")  # twice is once


def stays(
    departures, *, held=("n1", "n3"), healthy=("n3",), gpus=2, ran=2, now_s=10.0, finds=(), wanted=False, **facts
):
    """It runs on two GPUs of its grid, one of them healthy."""
    facts = {"phase": Phase.RUNNING, "shape": Shape("p", gpus), "runs_in": Shape("p", ran), **facts}
    state = JobState(job=JOB, seq=0, **facts)
    return departures.stays(state, on(*held), on(*healthy), now_s, finds=finds, wanted=wanted)


def test_who_runs_stays_until_it_is_due(departures):
    assert [stays(departures, now_s=now_s) for now_s in (0.0, 92.9, 93.0, 99.0)] == [True, True, False, False]
    assert not stays(departures, held=["n3"])  # nothing is taken from it
    assert not stays(departures, phase=Phase.BROKEN)
    assert not stays(departures, shape=None)
    assert not stays(departures, runs_in=None)


def test_it_does_not_stay_for_more_than_it_uses_unless_that_is_not_there_yet(departures):
    assert not stays(departures, gpus=3)
    assert stays(departures, gpus=3, finds=None)
    assert stays(departures, gpus=1)
    grid = {"shape": Shape("p", 3, grid=Grid(1, 2)), "runs_in": Shape("p", 2, grid=Grid(2, 1))}  # the third is spare
    assert stays(departures, **grid)


def test_nor_with_gpus_that_others_were_promised_nor_while_others_want_what_it_finds(departures):
    assert not stays(departures, gpus=1, healthy=["n3", "n3"])  # it is to have fewer than are healthy
    assert not stays(departures, wanted=True)
    assert stays(departures, wanted=True, gpus=1)  # all that it is to have it has
    assert stays(departures, wanted=True, finds=None)


JOBS = {"a": JobState(job=JOB, seq=0), "b": JobState(job=a_job("b", lead_s=5.0), seq=1)}
PLACES = {"a": on("n1", "n2", "n3"), "b": on("n3")}


def test_whoever_is_first_to_leave_is_woken_then_and_once(departures):
    assert departures.wake(JOBS, PLACES, 10.0) == 53.0
    assert departures.wake_s == 53.0
    assert departures.wake(JOBS, PLACES, 20.0) is None  # it is known
    assert departures.due(JOBS, PLACES, 52.9) == []
    assert departures.wake_s is None
    assert departures.due(JOBS, PLACES, 53.0) == ["a"]
    assert departures.wake(JOBS, {**PLACES, "a": on("n1", "n3")}, 53.0) == 93.0  # it has left the second
    assert departures.wake(JOBS, PLACES, 99.0) is None  # too late


def test_survivors_of_a_loss_wait_for_a_second(departures):
    departures.broken_s = 20.0
    assert departures.wake(JOBS, PLACES, 20.0) == 21.0
    assert [departures.has_waited(now_s) for now_s in (20.0, 20.9)] == [False, False]
    assert departures.has_waited(21.0)
    assert departures.broken_s is None
    assert not departures.has_waited(30.0)
    for node_id in ("n1", "n2"):
        departures.forget(node_id)
    assert departures.wake(JOBS, PLACES, 30.0) is None
    departures.broken_s = 30.0
    assert departures.wake(JOBS, PLACES, 30.0) == 31.0


def test_what_it_will_become_is_told_once(departures):
    plain, grid, spares = Shape("p", 3), Shape("p", 4, grid=Grid(2, 2)), Shape("p", 5, grid=Grid(2, 2))
    assert departures.tell("a", plain)
    assert not departures.tell("a", plain)
    assert departures.tell("a", grid)
    assert not departures.tell("a", spares)  # it trains alike
    assert departures.tell("a", Shape("p", 4, grid=Grid(1, 4)))
    assert departures.tell("b", plain)


def test_departures_go_on_from_a_snapshot(departures):
    departures.wake(JOBS, PLACES, 10.0)
    departures.tell("a", Shape("p", 4, grid=Grid(2, 2)))
    departures.broken_s = 7.0
    twin = Departures(departures._cluster)
    twin.restore(departures.facts())
    assert twin.facts() == departures.facts()
    assert twin.due_s(JOB, on("n1")) == 93.0
    assert not twin.tell("a", Shape("p", 4, grid=Grid(2, 2)))
