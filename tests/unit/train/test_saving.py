"""A checkpoint that cannot be written is told, and training goes on."""

from __future__ import annotations

import itertools
import shutil
import threading
import time

import pytest
import torch

from sublet.errors import SubletError
from sublet.train.checkpoint import files
from sublet.train.checkpoint.checkpoints import newest
from sublet.train.saving import Saver
from sublet.train.state import Progress
from sublet.wire.messages import Saved, SaveFailed


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


def saved_at(folder, seconds, monkeypatch, *, every_s=600.0, takes_s=0.0):
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


def test_what_is_asked_for_while_another_is_written_is_saved_after_it(tmp_path, monkeypatch):
    write, ended = files.write, threading.Event()
    monkeypatch.setattr(files, "write", lambda *args, **facts: ended.wait(60) and write(*args, **facts))
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
