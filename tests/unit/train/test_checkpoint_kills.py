"""A writer is a real process, killed at every step of a commit, at random byte offsets, and at any time at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from pathlib import Path

import pytest
import torch

from sublet.errors import StaleWriter
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.disk import DiskFolder
from sublet.train.checkpoint.manifest import verify
from tests.rigs.sizes import sized

MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - SIGKILL does not care for the medium
OFFSETS = sized(60, 200)
ANY_TIME = 40
ORDERS = ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir")


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name) / "checkpoints"


def state_of(step, size=20_000):
    generator = torch.Generator().manual_seed(step)
    return {"w": torch.randn(size // 4, generator=generator), "step": step}


def save(directory, step, *, generation=1, keep=2):
    with Checkpoints(directory, keep=keep, writer="w", generation=generation) as kept:
        return kept.save(step, state_of(step), {"step": step}).wait()


def in_a_process(work):
    """Run `work` in a forked process; returns its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; ours have ended
        pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of pytest may run twice
            os._exit(1)
    return pid


def died_of_sigkill(pid):
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the writer failed instead of being killed"
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_before_order(number):
    """This process kills itself instead of giving the operating system its order `number`."""
    given = 0

    def instead(real):
        def order(*args, **kwargs):
            nonlocal given
            if given == number:
                die()
            given += 1
            return real(*args, **kwargs)

        return order

    for name in ORDERS:
        setattr(os, name, instead(getattr(os, name)))
    fcntl.flock = instead(fcntl.flock)


def die_after_bytes(number):
    """This process kills itself when it has written so many bytes."""
    left = number
    write = os.write

    def order(handle, content):
        nonlocal left
        if len(content) > left:
            write(handle, content[:left])
            die()
        left -= len(content)
        return write(handle, content)

    os.write = order


def assert_whole(directory, allowed):
    loaded = newest(directory)
    assert loaded is not None
    assert loaded.step in allowed
    assert loaded.skipped == []  # what is committed is whole: nothing had to be passed over
    assert torch.equal(loaded.state["w"], state_of(loaded.step)["w"])
    assert loaded.state["step"] == loaded.meta["step"] == loaded.step
    return loaded.step


def assert_recovers(directory, step):
    """The next writer finds nothing in its way, and leaves nothing behind."""
    save(directory, step)
    assert assert_whole(directory, {step}) == step
    assert list((directory / "staging").iterdir()) == []
    assert len(Directory(directory).steps()) == 2


def test_a_writer_killed_before_any_single_order_leaves_the_old_or_the_new(directory):
    seen = []
    for number in range(10_000):
        shutil.rmtree(directory, ignore_errors=True)
        for step in (1, 2, 3):
            save(directory, step)

        def work(number=number):
            die_before_order(number)
            save(directory, 4)

        if not died_of_sigkill(in_a_process(work)):
            break
        seen.append(assert_whole(directory, {3, 4}))
        assert_recovers(directory, 4)
    assert len(seen) > 40  # there are that many orders, from the first announcement to the last old file removed
    assert seen == sorted(seen)  # there is one commit point: old before it, new after it
    assert set(seen) == {3, 4}


def test_a_first_writer_killed_before_any_single_order_leaves_nothing_or_a_whole_one(directory):
    seen = []
    for number in range(10_000):
        shutil.rmtree(directory, ignore_errors=True)

        def work(number=number):
            die_before_order(number)
            save(directory, 4)

        if not died_of_sigkill(in_a_process(work)):
            break
        loaded = newest(directory)
        seen.append(loaded is not None)
        assert loaded is None or torch.equal(loaded.state["w"], state_of(4)["w"])
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


def test_a_writer_killed_at_random_byte_offsets_leaves_the_old_one(directory):
    save(directory, 1)
    size = sum(path.stat().st_size for path in (directory / "step-1").iterdir())
    rng = random.Random(200)
    for offset in sorted(rng.sample(range(size), OFFSETS)):

        def work(offset=offset):
            die_after_bytes(offset)
            save(directory, 2)

        assert died_of_sigkill(in_a_process(work)), offset
        left = sum(path.stat().st_size for path in (directory / "staging").glob("2-*/*"))
        assert left == offset  # the next writer removed what the last one left, and this one died where it should
        assert_whole(directory, {1})
    assert_recovers(directory, 2)


def test_a_writer_killed_at_any_time_leaves_a_whole_one(directory):
    save(directory, 1)
    rng = random.Random(40)
    newest_step = 1
    for case in range(ANY_TIME):

        def work(first=newest_step):
            with Checkpoints(directory, keep=2, writer="w", generation=1) as kept:
                for step in range(first + 1, first + 1_000):
                    kept.save(step, state_of(step), {"step": step}).wait()

        pid = in_a_process(work)
        while case % 2 and Directory(directory).steps()[0] == newest_step:
            time.sleep(0.001)  # every other one is killed in the middle of its work, however slow the machine
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert died_of_sigkill(pid)
        step = assert_whole(directory, range(newest_step, newest_step + 1_000))
        newest_step = step  # committed steps never go back
    assert newest_step > 1
    assert_recovers(directory, newest_step + 1)


def test_two_writers_of_the_same_steps_do_not_harm_each_other(directory):
    def work():
        with Checkpoints(directory, keep=3, writer=str(os.getpid()), generation=1) as kept:
            for step in range(20):
                kept.save(step, state_of(step), {"step": step}).wait()

    pids = [in_a_process(work) for _ in range(3)]
    for _ in range(20):
        loaded = newest(directory)  # a reader beside them never sees less than a whole one
        assert loaded is None or torch.equal(loaded.state["w"], state_of(loaded.step)["w"])
    for pid in pids:
        assert not died_of_sigkill(pid)  # nor did it fail
    assert Directory(directory).steps() == [19, 18, 17]
    for step in (17, 18, 19):
        verify(DiskFolder(directory / f"step-{step}"), step)
    assert list((directory / "staging").iterdir()) == []


def test_no_commit_of_the_old_generation_follows_an_announcement(directory):
    for round_ in range(10):
        shutil.rmtree(directory, ignore_errors=True)

        def work():
            old = Checkpoints(directory, keep=100_000, writer="old", generation=1)
            with old, contextlib.suppress(StaleWriter):
                for step in range(100_000):
                    old.save(step, state_of(step), {"step": step}).wait()

        pid = in_a_process(work)
        while not Directory(directory).steps():
            time.sleep(0.001)
        time.sleep(random.Random(round_).uniform(0.0, 0.02))
        with Checkpoints(directory, writer="new", generation=1) as kept:
            kept.fence(2)
        at_the_announcement = Directory(directory).steps()
        assert not died_of_sigkill(pid)
        assert Directory(directory).steps() == at_the_announcement
        assert max(at_the_announcement) < 99_999  # it was stopped, it had not come to its end
        save(directory, 200_000, generation=2)
        assert newest(directory).step == 200_000


def test_a_dead_writer_does_not_hold_the_lock(directory):
    save(directory, 1)

    def work():
        with Directory(directory).locked():
            die()

    assert died_of_sigkill(in_a_process(work))
    save(directory, 2)  # which fails where the lock stays
