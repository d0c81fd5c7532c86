"""Scenarios 14, 16, 17, 19 and 23: checkpoints, resizes and memory of real training."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from tests.rigs.scenario import world

MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - SIGKILL does not care for the medium
ORDERS = ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir")
pytestmark = pytest.mark.timeout(600)


def state_of(step):
    return {"w": torch.full((4000,), float(step)), "step": step}


def save(directory, step):
    with Checkpoints(directory, keep=2, writer="w", generation=1) as kept:
        return kept.save(step, state_of(step), {"step": step}).wait()


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name) / "checkpoints"


def killed_while_saving(directory, step, *, at):
    """A process that saves and dies at its so many-th order to the machine; whether it got that far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        left = [at]

        def instead(real):
            def order(*args, **facts):
                if left[0] == 0:
                    if real is os_write and len(args[1]) > 1:
                        os_write(args[0], args[1][: len(args[1]) // 2])  # in the middle of a write
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*args, **facts)

            return order

        os_write = os.write
        for name in ORDERS:
            setattr(os, name, instead(getattr(os, name)))
        fcntl.flock = instead(fcntl.flock)
        try:
            save(directory, step)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.scenario(14, "preemption during a checkpoint, at every write boundary", "L")
def test_14_a_checkpoint_that_was_cut_anywhere_is_never_loaded_and_the_one_before_is(directory, full, measured):
    save(directory, 1)
    boundaries = 0
    while killed_while_saving(_copy(directory), 2, at=boundaries):
        boundaries += 1
    rng, kills, new = random.Random(14), 0, 0
    points = list(range(boundaries)) + [rng.randrange(boundaries) for _ in range((1000 if full else 60) - boundaries)]
    for at in points:
        place = _copy(directory)
        assert killed_while_saving(place, 2, at=at)
        loaded = newest(place)
        assert loaded is not None, f"order {at}: nothing can be loaded"
        assert loaded.step in (1, 2), f"order {at}"
        assert loaded.skipped == [], f"order {at}: what is committed is whole"
        assert torch.equal(loaded.state["w"], state_of(loaded.step)["w"]), f"order {at}: it is another state"
        kills, new = kills + 1, new + (loaded.step == 2)
        shutil.rmtree(place.parent)
    assert 0 < new < kills, "the commit point was never between two kills"
    measured(
        f"{kills} kills over {boundaries} boundaries: 0 corrupt loads, {kills - new} fell back, {new} were committed"
    )


def _copy(directory):
    place = Path(tempfile.mkdtemp(dir=MEMORY)) / "checkpoints"
    shutil.copytree(directory, place)
    return place


@pytest.mark.scenario(16, "a bit flips, a file is cut, missing or empty in the newest checkpoint", "L")
def test_16_damage_is_found_the_one_before_is_used_and_it_is_told(directory, full, measured):
    save(directory, 1)
    save(directory, 2)
    rng, tried = random.Random(16), 0
    files = sorted(path.relative_to(directory) for path in (directory / "step-2").rglob("*") if path.is_file())
    for number in range(400 if full else 40):
        place = _copy(directory)
        victim = place / files[number % len(files)]
        content = victim.read_bytes()
        how = ("flip", "cut", "missing", "empty")[number // len(files) % 4]
        if how == "flip" and content:
            at = rng.randrange(len(content))
            victim.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])
        elif how == "cut" and content:
            victim.write_bytes(content[: rng.randrange(len(content))])
        elif how == "missing":
            victim.unlink()
        else:
            victim.write_bytes(b"")
        skipped = []
        loaded = newest(place, skipped)
        assert loaded is not None
        assert loaded.step == 1, f"{how} of {victim.name} was not seen"
        assert torch.equal(loaded.state["w"], state_of(1)["w"])
        assert [path.name for path, _ in skipped] == ["step-2"], "nobody would be told"
        tried += 1
        shutil.rmtree(place.parent)
    measured(f"{tried} damages of {len(files)} files: all found, all fell back, all told")


@pytest.mark.scenario(
    17,
    "a full or slow disk during a checkpoint",
    "L",
    lacks="an object store: there is none yet; an alarm, and a try that the session makes by itself",
)
def test_17_training_goes_on_while_the_disk_is_full_or_slow_and_the_old_checkpoint_stays(
    directory, measured, monkeypatch
):
    real, state, writes = os.write, {"full": False}, threading.Event()
    writes.set()

    def write(handle, content):
        if state["full"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        writes.wait(120)
        return real(handle, content)

    with Checkpoints(directory, keep=2, writer="w", generation=1) as kept:
        kept.save(1, state_of(1), {}).wait()
        monkeypatch.setattr(os, "write", write)
        state["full"] = True
        pending = kept.save(2, state_of(2), {})
        steps = 0
        while not pending.done:  # the training loop goes on
            steps += 1
            time.sleep(0.001)
        assert pending.error is not None, "nobody was told"
        assert "space" in str(pending.error)
        assert newest(directory).step == 1, "the old one is gone"
        state["full"] = False
        writes.clear()
        slow = kept.save(3, state_of(3), {})
        blocked_s = slow.blocked_s
        assert kept.save(4, state_of(4), {}).step == 3, "one at a time: the next is skipped, not queued"
        writes.set()
        slow.wait(120.0)
        kept.save(5, state_of(5), {}).wait()
    assert newest(directory).step == 5
    measured(
        f"full: told, step 1 stays; slow: training stood still for {blocked_s * 1e3:.1f} ms of {slow.seconds:.2f} s"
    )


@pytest.mark.scenario(19, "50 resizes at random", "L", heavy=True, lacks="widths to 4; G: no GPUs")
def test_19_every_sample_is_seen_once_per_epoch_whatever_the_width(tmp_path, full, measured):
    count = 50 if full else 8
    resized = world("resizes", tmp_path / "resized", count=count, seed=19)
    fixed = world("fixed", tmp_path / "fixed", width=2)
    assert resized["resizes"] == count
    assert resized["seen"] == fixed["seen"], "a sample was missed or seen twice"
    assert all(samples == sorted(set(samples)) for samples in resized["seen"].values())
    (first, second) = (max(run["ends"], key=lambda end: end.get("steps", 0)) for run in (resized, fixed))
    assert first["steps"] == second["steps"], "the global batch was not constant"
    worst = _apart(first, second)
    assert worst <= 0.01, worst
    measured(
        f"{count} resizes between 1 and 4: {len(resized['seen'])} epochs, every sample once; weights within {worst:.2%}"
    )


def _apart(first, second):
    """Of the parameters, by their norm."""
    ours, theirs = torch.tensor(first["parameters"]), torch.tensor(second["parameters"])
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.scenario(23, "out of memory at a larger local batch", "L", heavy=True, lacks="G: the memory of a real GPU")
def test_23_a_step_that_does_not_fit_is_made_of_fewer_samples_and_the_global_batch_stays(tmp_path, measured):
    small = {"SAMPLES": "64", "EPOCHS": "2"}
    short = world("short", tmp_path / "short", width=2, env={**small, "ROOM": "3", "CLOSED": "1"})
    plain = world("fixed", tmp_path / "plain", width=2, env=small)
    assert min(after for _, after in short["cuts"]) == 2
    assert short["seen"] == plain["seen"], "a sample was missed or seen twice"
    assert short["ends"][0]["steps"] == plain["ends"][0]["steps"], "the global batch is another"
    apart = abs(short["ends"][0]["loss"] / plain["ends"][0]["loss"] - 1.0)
    assert apart <= 0.01, apart
    assert set(short["codes"].values()) == {0}, "a worker failed, and its owner would pay with a retry"
    cuts = ", ".join(f"{before} to {after}" for before, after in sorted({tuple(cut) for cut in short["cuts"]})[::-1])
    measured(f"samples at a time: {cuts}; the same steps and samples, loss within {apart:.2%}, no worker failed")
