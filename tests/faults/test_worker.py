"""Workers of the world follow orders by the shipped code: here without an agent, by orders that a test gives."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from sublet.wire.lines import LineBuffer, to_line
from sublet.wire.messages import (
    EXIT_LEFT,
    EXIT_LOST,
    EXIT_MEMORY,
    Broke,
    Damaged,
    Finished,
    Joined,
    Leading,
    Leave,
    Meet,
    Ready,
    Regroup,
    Saved,
    SaveNow,
    ShortOfMemory,
    StartWorker,
    Stepped,
)
from sublet_lab.world.heap import Process, World
from sublet_lab.world.machine import trip_wired
from sublet_lab.world.network import Network
from sublet_lab.world.shelf import Shelf
from sublet_lab.world.sockets import socket_pair
from sublet_lab.world.truth import JobTruth, Truth
from sublet_lab.world.worker import Meetings, SdkWorker


@pytest.fixture(autouse=True)
def _no_real_machine():
    with trip_wired():
        yield


class Quiet(Process):
    def step(self):
        return None


class Hand:
    """One worker, and the agent's end of its line."""

    def __init__(self, job, name, host):
        agent = Quiet(job.world, f"agent of {host}", host)
        self.line, theirs = socket_pair(agent, agent)
        self.line.on_ready = lambda: None
        self.name, self.code, self._lines, self.heard = name, None, LineBuffer(), []
        order = StartWorker(worker_id=name, job_id="job", argv=("train",))
        self.worker = SdkWorker(job.meetings, host=host, order=order, line=theirs, exited=self._exited)

    def _exited(self, code):
        self.code = code

    def say(self, message):
        self.line.send(to_line(message))

    def said(self, kind=object):
        while self.line.readable:
            data = self.line.recv(1 << 16)
            self.heard += self._lines.feed(data)
            if not data:
                break
        return [message for message in self.heard if isinstance(message, kind)]


class Job:
    def __init__(self, seed=1, **facts):
        self.world = World(seed)
        self.network, self.truth = Network(self.world), Truth()
        self.meetings = Meetings(self.world, self.network, self.truth)
        self.truth.jobs["job"] = JobTruth(**({"steps": 1000, "step_s": 1.0} | facts))
        self.generation = 0

    def start(self, *names):
        return [Hand(self, name, f"host of {name}") for name in names]

    def run(self, seconds):
        self.world.run(self.world.now_s + seconds)

    def regroup(self, *hands, **more):
        self.generation += 1
        for rank, hand in enumerate(hands):
            facts = {"generation": self.generation, "rank": rank, "world": len(hands), **more}
            hand.say(Regroup(worker_id=hand.name, **facts))
        self.run(1.0)
        for hand in hands[1:]:
            hand.say(Meet(worker_id=hand.name, generation=self.generation, host="there", port=1))

    def top(self):
        return self.truth.jobs["job"].top


def test_workers_join_train_save_and_finish():
    job = Job(steps=60)
    hands = job.start("a", "b")
    job.run(10.0)
    assert all(hand.said(Ready) for hand in hands)
    job.regroup(*hands)
    job.run(100.0)
    assert [hand.code for hand in hands] == [0, 0]
    assert [len(hand.said(Joined)) for hand in hands] == [1, 1]
    assert len(hands[0].said(Leading)) == len(hands[0].said(Finished)) == 1
    assert hands[0].said(Stepped)
    assert 0 < len(hands[1].said(Stepped)) < len(hands[0].said(Stepped))  # as report.py has it
    truth = job.truth.jobs["job"]
    assert (truth.saved, truth.told, truth.done) == (60, 60, True)
    assert not job.truth.complaints


def test_a_survivor_carries_the_state_and_a_newcomer_takes_it():
    job = Job()
    a, b, c = job.start("a", "b", "c")
    job.run(10.0)
    job.regroup(a, b)
    job.run(20.0)
    before = job.top()
    b.worker.exit(-9)
    job.run(1.0)
    assert len(a.said(Broke)) == 1
    job.regroup(a, c, broken=True)
    job.run(5.0)
    assert (a.said(Joined)[-1].source, c.said(Joined)[-1].step) == ("peer", before)
    job.run(10.0)
    assert job.top() > before


def test_a_machine_that_goes_without_a_word_stalls_its_group_until_an_order_breaks_it():
    job = Job()
    a, b = job.start("a", "b")
    job.run(10.0)
    job.regroup(a, b)
    job.run(20.0)
    before = job.top()
    job.network.switch_off("host of b")
    b.worker.vanish()
    job.run(60.0)
    assert (job.top(), a.said(Broke)) == (before, [])
    job.regroup(a, broken=True)
    job.run(10.0)
    assert job.top() > before
    assert a.said(Joined)[-1].source == "peer"


def test_what_is_forming_is_given_up_for_a_newer_order():
    job = Job()
    a, b = job.start("a", "b")
    b.worker.hung = True
    job.run(10.0)
    job.regroup(a, b)
    job.run(30.0)
    assert not a.said(Joined)
    job.regroup(a)
    job.run(5.0)
    assert a.said(Joined)[-1].generation == 2
    assert not a.said(Broke)


def test_who_leaves_saves_and_the_next_ones_begin_there():
    job = Job()
    a, b = job.start("a", "b")
    job.run(10.0)
    job.regroup(a, b)
    job.run(20.0)
    for hand in (a, b):
        hand.say(Leave(worker_id=hand.name, generation=2, save=True))
    job.run(10.0)
    assert (a.code, b.code) == (EXIT_LEFT, EXIT_LEFT)
    saved = a.said(Saved)[-1].step
    assert saved == job.top()
    job.generation = 2
    (c,) = job.start("c")
    job.run(10.0)
    job.regroup(c)
    job.run(5.0)
    assert (c.said(Joined)[-1].source, c.said(Joined)[-1].step) == ("checkpoint", saved)


def test_a_worker_without_a_line_ends():
    job = Job()
    a, b = job.start("a", "b")
    job.run(10.0)
    job.regroup(a)
    job.run(5.0)
    a.line.close()
    b.line.close()
    job.run(15.0)
    assert (a.code, b.code) == (EXIT_LOST, EXIT_LOST)


def test_a_worker_that_hears_no_order_for_long_ends():
    job = Job()
    (a,) = job.start("a")
    job.run(400.0)
    assert a.code == EXIT_LOST


def test_a_kill_in_a_save_and_a_power_cut_leave_what_was_told():
    """Scenarios of a preemption while a checkpoint is written, and of a disk that loses its power."""
    rng = random.Random(14)
    for seed in range(60):
        job = Job(seed=seed, write_s=2.0)
        (a,) = job.start("a")
        job.run(10.0)
        job.regroup(a)
        job.run(rng.uniform(5.0, 30.0))
        a.say(SaveNow(worker_id="a"))
        job.run(rng.uniform(0.0, 5.0))
        a.worker.exit(-9)
        if rng.random() < 0.5:
            job.meetings.storage.cut_power()
        told = max((message.step for message in a.said(Saved)), default=0)
        (b,) = job.start("b")
        job.run(10.0)
        job.regroup(b)
        job.run(10.0)
        assert told <= b.said(Joined)[-1].step <= job.top()
        assert not job.truth.complaints


def test_a_checkpoint_that_was_told_and_is_gone_is_a_broken_law():
    job = Job()
    shelf = Shelf(job.meetings.storage, job.truth.jobs["job"], "job", "w")
    shelf.open(1)
    shelf.save(5)
    assert shelf.newest() == (5, [])
    job.truth.jobs["job"].told = 7
    (a,) = job.start("a")
    job.run(10.0)
    job.regroup(a)
    job.run(5.0)
    assert [law for law, _ in job.truth.complaints] == ["I4"]


def test_who_runs_short_of_memory_tells_and_all_take_the_limit_of_the_next_order():
    job = Job()
    a, b = job.start("a", "b")
    job.run(10.0)
    job.regroup(a, b)
    job.run(20.0)
    assert b.worker.run_short(ends=False)
    job.run(2.0)
    [said] = b.said(ShortOfMemory)
    assert (said.samples, said.micro_batch) == (16, 8)
    assert a.said(Broke)
    job.regroup(a, b, broken=True, micro_batch=8)
    job.run(5.0)
    assert a.worker.run_short(ends=True)  # the other has learned of it
    assert a.said(ShortOfMemory)[-1].micro_batch == 4
    assert a.code == EXIT_MEMORY


def test_a_checkpoint_that_rots_is_passed_over_and_told_of():
    job = Job()
    (a,) = job.start("a")
    job.run(10.0)
    job.regroup(a)
    for _ in range(3):
        job.run(5.0)
        a.say(SaveNow(worker_id="a"))
    job.run(5.0)
    saved = [message.step for message in a.said(Saved)]
    assert len(saved) >= 3
    assert job.meetings.storage.rot("job", job.truth.jobs["job"], random.Random(1))
    a.worker.exit(-9)
    (b,) = job.start("b")
    job.run(10.0)
    job.regroup(b)
    job.run(5.0)
    assert b.said(Damaged)[-1].step == b.said(Joined)[-1].step == saved[-2]
    assert not job.truth.complaints


def test_no_world_imports_torch_or_scipy():
    code = "import sys, sublet_lab.world.runner as _; sys.exit(bool({'torch', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
