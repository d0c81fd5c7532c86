"""A checkpoint that cannot be written is told, and training goes on."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from sublet.errors import CheckpointFailed, StaleWriter, SubletError
from sublet.train.checkpoint import checkpoints
from sublet.train.checkpoint.checkpoints import newest
from sublet.train.checkpoint.saving import Saver
from sublet.train.link.following import at_once
from sublet.train.link.membership import Membership
from sublet.train.link.peers import PeerGroup
from sublet.train.state.state import Progress, State
from sublet.wire.messages import Saved, SaveFailed
from tests.rigs.little_network import adam, network


def test_a_failed_write_is_told_and_the_next_one_is_tried(tmp_path):
    told = []
    saver = Saver(tmp_path, "job.1.0", told.append)
    saver.opened(1)
    progress = Progress(samples=8, batch=4)
    shutil.rmtree(tmp_path / "staging", ignore_errors=True)
    (tmp_path / "staging").write_text("in the way")
    saver.save({"w": torch.ones(3)}, progress, 1)
    assert [type(message) for message in told] == [SaveFailed]
    assert told[0].worker_id == "job.1.0"
    (tmp_path / "staging").unlink()
    saver.save({"w": torch.ones(3)}, progress, 1)
    assert [type(message) for message in told] == [SaveFailed, Saved]
    saver.close()


def a_saver_in_the_way(folder, told, sleep):
    """Nothing can be written, until somebody takes the file away."""
    saver = Saver(folder, "job.1.0", told.append, sleep=sleep)
    saver.opened(1)
    shutil.rmtree(folder / "staging", ignore_errors=True)
    (folder / "staging").write_text("in the way")
    return saver


def test_the_last_checkpoint_is_tried_again_and_then_it_is_an_error_that_says_what_to_do(tmp_path):
    told, slept = [], []
    saver = a_saver_in_the_way(tmp_path, told, slept.append)
    with pytest.raises(CheckpointFailed, match="all 0 steps are made") as failed:
        saver.save_last({"w": torch.ones(3)}, Progress(samples=8, batch=4))
    assert "next: make room" in str(failed.value)
    assert slept == [1.0, 5.0, 20.0]
    assert [type(message) for message in told] == [SaveFailed] * 4


def test_a_last_checkpoint_that_is_written_at_the_second_try_is_one(tmp_path):
    told = []
    saver = a_saver_in_the_way(tmp_path, told, lambda _: (tmp_path / "staging").unlink())
    saver.save_last({"w": torch.ones(3)}, Progress(samples=8, batch=4))
    assert [type(message) for message in told] == [SaveFailed, Saved]


def test_a_writer_that_was_succeeded_does_not_wait_to_write_the_last_one(tmp_path):
    slept = []
    saver = Saver(tmp_path, "job.1.0", lambda message: None, sleep=slept.append)
    saver.opened(1)
    newer = Saver(tmp_path, "job.1.1", lambda message: None)
    newer.opened(2)
    with pytest.raises(StaleWriter):
        saver.save_last({"w": torch.ones(3)}, Progress(samples=8, batch=4))
    assert not slept


def saved_at(folder, seconds, monkeypatch, *, every_s=600.0, takes_s=0.0, blocked_s=None):
    """The seconds of training at which checkpoints were begun, of a loop that looks at these."""
    monkeypatch.setenv("SUBLET_CHECKPOINT_EVERY_S", str(every_s))
    told, began = [], []
    saver = Saver(folder, "job.1.0", told.append)
    saver.opened(1)
    progress = Progress(samples=8, batch=4)
    start_s = time.monotonic()

    def tree(at_s):
        began.append(at_s)
        return {"w": torch.ones(3)}

    for at_s in seconds:
        progress.steps += 1
        saver.tick(start_s + at_s, lambda at_s=at_s: tree(at_s), progress, 1, asked=False)
        if saver._pending is not None:
            saver._pending.wait()
            saver._pending.seconds = takes_s
            saver._pending.blocked_s = saver._pending.blocked_s if blocked_s is None else blocked_s
    saver.close()
    return began


def test_a_worker_that_dies_young_has_lost_no_more_than_half_of_what_it_did(tmp_path, monkeypatch):
    began = saved_at(tmp_path, range(1201), monkeypatch)
    assert began[0] <= 20  # one that was killed after 25 s once had saved nothing
    assert all(late <= 2 * early + 30 for early, late in itertools.pairwise(began))
    gaps = [late - early for early, late in itertools.pairwise(began)]
    assert gaps == sorted(gaps)
    assert gaps[-1] <= 600
    assert len(began) <= 7  # then by the interval: few more than the two of a run that saves every ten minutes


def test_an_interval_that_is_short_already_is_kept(tmp_path, monkeypatch):
    assert saved_at(tmp_path, range(11), monkeypatch, every_s=2.0) == [2, 4, 6, 8, 10]


def test_a_state_that_is_slow_to_write_is_not_written_all_the_time(tmp_path, monkeypatch):
    began = saved_at(tmp_path, range(601), monkeypatch, takes_s=10.0)
    assert began[0] <= 20  # what it costs is known only then
    assert all(late - early >= 200 for early, late in itertools.pairwise(began))


@pytest.mark.parametrize(("blocked_s", "takes_s", "least_s"), [(1.0, 1.0, 50), (0.0, 10.0, 100)])
def test_an_interval_of_the_controllers_never_slows_training_by_more_than_it_says(
    tmp_path, monkeypatch, blocked_s, takes_s, least_s
):
    monkeypatch.setenv("SUBLET_CHECKPOINT_MOST_SLOWDOWN", "0.02")
    began = saved_at(tmp_path, range(401), monkeypatch, every_s=2.0, takes_s=takes_s, blocked_s=blocked_s)
    assert began[0] <= 20  # what it costs is known only then
    assert all(least_s <= late - early <= least_s + 1 for early, late in itertools.pairwise(began))


class Writers:
    """Savers of one directory, one after the other, by a clock that a test sets."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now_s, self.began, self.progress = folder, 0.0, [], Progress(samples=8, batch=4)
        monkeypatch.setenv("SUBLET_CHECKPOINT_EVERY_S", "600")
        self.wall = SimpleNamespace(monotonic=lambda: self.now_s, unix=lambda: 1e9 + self.now_s)

    def saver(self):
        return Saver(self.folder, "job.1.0", lambda message: None, wall=self.wall)

    def train(self, saver, *seconds):
        for self.now_s in seconds:
            self.progress.steps += 1
            saver.tick(self.now_s, self.tree, self.progress, 1, asked=False)
            if saver._pending is not None:
                path = saver.store.place_of(saver._pending.wait().step)
                saver._pending.seconds = 0.0
                os.utime(path, (1e9 + self.now_s, 1e9 + self.now_s))

    def tree(self):
        self.began.append(self.now_s)
        return {"w": torch.ones(3)}


def test_a_new_writer_goes_on_in_the_schedule_of_the_one_before(tmp_path, monkeypatch):
    world = Writers(tmp_path, monkeypatch)
    first, second, third = world.saver(), world.saver(), world.saver()
    first.opened(1)
    world.train(first, 0.0, 14.0)
    second.take_over(first.trained_s)
    second.opened(2)  # the first is gone
    world.train(second, 14.5, 15.0, 20.0)
    assert world.began == [15.0]
    third.take_over(second.trained_s)
    third.opened(3)
    world.train(third, 21.0, 44.0, 45.0)
    assert world.began == [15.0, 45.0]
    second.opened(4)
    world.train(second, 46.0, 104.0, 105.0)
    assert world.began == [15.0, 45.0, 105.0]
    for saver in (first, second, third):
        saver.close()


def test_training_that_resumes_begins_its_schedule_anew(tmp_path, monkeypatch):
    world = Writers(tmp_path, monkeypatch)
    before, after = world.saver(), world.saver()
    before.opened(1)
    world.train(before, 0.0, 15.0, 45.0)
    after.opened(2)
    assert after.newest() is not None
    world.train(after, 50.0, 64.0, 65.0)
    assert world.began == [15.0, 45.0, 65.0]
    before.close()
    after.close()


@pytest.mark.parametrize(("known", "trained_s"), [(True, 14.0), (False, 0.0)])  # False: of an earlier version
def test_the_schedule_is_handed_over_with_the_state(tmp_path, monkeypatch, known, trained_s):
    world = Writers(tmp_path, monkeypatch)
    sent = {}

    def broadcast(group, source, state):
        sent.update(state or {})
        return {name: value for name, value in sent.items() if known or name != "trained_s"}

    monkeypatch.setattr("sublet.train.link.membership.broadcast", broadcast)
    members = []
    for rank in (1, 0):
        saver, model = world.saver(), network()
        state = State(model, adam(model), (), None, 1)
        holding = Membership(state, Progress(samples=8, batch=4), saver, torch.device("cpu"))
        members.append((holding, PeerGroup(rank=rank, world=2, generation=2), saver))
    (holder, its_group, old), (newcomer, other_group, new) = members
    old.opened(1)
    world.train(old, 0.0, 14.0)
    at_once(holder.share(its_group, [1]))
    at_once(newcomer.share(other_group, [1]))
    assert new.trained_s == trained_s
    old.close()


def test_what_is_asked_for_while_another_is_written_is_saved_after_it(tmp_path, monkeypatch):
    write, ended = checkpoints.write_state, threading.Event()
    monkeypatch.setattr(checkpoints, "write_state", lambda *args, **facts: ended.wait(60) and write(*args, **facts))
    told = []
    saver = Saver(tmp_path, "job.1.0", told.append)
    saver.opened(1)
    progress = Progress(samples=8, batch=4)

    def tick(step, *, asked=False):
        progress.steps = step
        saver.tick(float(step), lambda: {"w": torch.full((3,), float(step))}, progress, 1, asked=asked)

    tick(0)
    tick(15)  # due
    tick(16, asked=True)
    tick(17)
    assert not told
    ended.set()
    saver._pending.wait()
    tick(18)
    assert [message.step for message in told] == [15]
    saver._pending.wait()
    tick(19)
    assert [message.step for message in told] == [15, 18]
    assert saver._pending is None  # once
    saver.close()
    assert newest(tmp_path).step == 18


def _spoil(directory, *steps):
    for step in steps:
        for path in (directory / f"step-{step}").iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"?")


def _saved(directory, *steps):
    told = []
    saver = Saver(directory, "job.1.0", told.append)
    saver.opened(1)
    for step in steps:
        progress = Progress(samples=8, batch=4)
        progress.steps = step
        saver.save({"w": torch.full((3,), float(step))}, progress, 1)
    saver.close()


def test_a_damaged_checkpoint_that_is_passed_over_is_told(tmp_path):
    _saved(tmp_path, 1, 2)
    _spoil(tmp_path, 2)
    told = []
    saver = Saver(tmp_path, "job.1.1", told.append)
    saver.opened(2)
    assert saver.newest().step == 1
    (damaged,) = told
    assert (damaged.step, damaged.paths) == (1, (str(tmp_path / "step-2"),))
    saver.close()


def test_where_all_are_damaged_nobody_begins_at_0_unasked(tmp_path, monkeypatch):
    _saved(tmp_path, 1, 2)
    _spoil(tmp_path, 1, 2)
    told = []
    saver = Saver(tmp_path, "job.1.1", told.append)
    saver.opened(2)
    with pytest.raises(SubletError, match="all 2 checkpoints"):
        saver.newest()
    assert [message.step for message in told] == [-1]
    monkeypatch.setenv("SUBLET_START_OVER", "1")
    assert saver.newest() is None
    assert sorted(path.name[:6] for path in (tmp_path / "damaged").iterdir()) == ["step-1", "step-2"]
    monkeypatch.delenv("SUBLET_START_OVER")
    assert saver.newest() is None  # nothing is in the way of what comes now
    assert len(told) == 1
    saver.close()
