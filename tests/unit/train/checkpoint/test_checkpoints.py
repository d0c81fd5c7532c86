"""Saving goes on behind the training loop, loading finds the newest whole one, and old ones make room."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from sublet.errors import CheckpointFailed, InvalidValue, StaleWriter
from sublet.train.checkpoint import disk as machine_disk
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.train.checkpoint.commit import Directory


def state_of(step):
    return {"w": torch.full((1_000,), float(step)), "step": step}


@pytest.fixture
def kept(tmp_path):
    with Checkpoints(tmp_path / "c", keep=3, writer="w", generation=1) as kept:
        yield kept


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


class SlowDisk:
    """No file is on the disk before `go` is called; `held` is set when the first is waited for."""

    def __init__(self, patch):
        self.held, self._go = threading.Event(), threading.Event()
        real = os.fsync

        def slow(handle):
            if stat.S_ISREG(os.fstat(handle).st_mode):
                self.held.set()
                self._go.wait(120)
            real(handle)

        patch.setattr(machine_disk.os, "fsync", slow)

    def go(self):
        self._go.set()


# ------------------------------------------------------------------------------------------------ saving and loading


def test_training_goes_on_from_a_checkpoint_exactly_as_it_would_have_without(kept):
    def made():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)

    def train(model, optimizer, schedule, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            schedule.step()

    straight = made()
    train(*straight, 5)
    parts = dict(zip(("model", "optimizer", "schedule"), (part.state_dict() for part in straight), strict=True))
    kept.save(5, parts | {"rng": torch.get_rng_state()}, {"world": 4}).wait()
    train(*straight, 5)

    again = made()
    loaded = kept.newest()
    for part, name in zip(again, ("model", "optimizer", "schedule"), strict=True):
        part.load_state_dict(loaded.state[name])
    torch.set_rng_state(loaded.state["rng"])
    train(*again, 5)
    assert loaded.meta["world"] == 4
    for one, other in zip(straight[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_happens_to_the_state_after_save_is_not_in_the_checkpoint(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    state = state_of(1)
    pending = kept.save(1, state, {})
    state["w"].zero_()
    disk.go()
    pending.wait()
    assert kept.newest().state["w"].eq(1.0).all()


def test_save_returns_while_the_disk_is_still_busy(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    pending = kept.save(1, state_of(1), {})
    assert disk.held.wait(120)
    assert not pending.done
    assert pending.error is None
    assert kept.newest() is None
    with pytest.raises(TimeoutError):
        pending.wait(0.01)
    time.sleep(0.05)
    disk.go()
    assert pending.wait().step == kept.newest().step == 1
    assert pending.size_bytes == 4_000
    assert pending.blocked_s > 0.0
    assert pending.seconds - pending.blocked_s > 0.05


def test_tied_weights_are_kept_once_and_stay_tied(kept):
    weight = torch.randn(100, 50)
    pending = kept.save(1, {"in": weight, "out": weight, "turned": weight.T}, {})
    pending.wait()
    state = kept.newest().state
    assert pending.size_bytes < 2 * 20_000 + 64
    assert state["in"] is state["out"]
    assert torch.equal(state["turned"], weight.T)


def test_each_loaded_tensor_has_memory_of_its_own(kept):
    kept.save(1, {"a": torch.ones(3), "b": torch.ones(1_000)}, {}).wait()
    assert kept.newest().state["a"].untyped_storage().nbytes() == 12


def test_a_tensor_larger_than_a_file_has_a_file_of_its_own(kept, monkeypatch):
    monkeypatch.setattr("sublet.train.checkpoint.snapshot.SEGMENT_BYTES", 256)
    state = {"small": torch.ones(4), "large": torch.arange(1_000), "last": torch.zeros(2)}
    kept.save(1, state, {}).wait()
    assert len(list(kept.newest().path.glob("data-*"))) == 3
    assert all(torch.equal(kept.newest().state[name], tensor) for name, tensor in state.items())


def test_memory_that_was_reserved_is_used_and_holds_nothing_yet(kept):
    kept.reserve(state_of(1))
    memory = kept._host._buffers[0].data_ptr()
    for step in (1, 2):
        kept.save(step, state_of(step), {}).wait()
        assert kept.newest().state["w"].eq(float(step)).all()
    assert kept._host._buffers[0].data_ptr() == memory


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_state_on_a_gpu_is_copied_as_it_was_when_save_was_called(kept):
    weight = torch.ones(1_000, 1_000, device="cuda")
    for step in (1, 2):
        weight.mul_(3.0)  # asked for, perhaps not done yet
        pending = kept.save(step, {"w": weight, "turned": weight.T, "host": torch.arange(3)}, {})
        weight.zero_().add_(3.0**step)
        pending.wait()
        state = kept.newest().state
        assert state["w"].device.type == "cpu"
        assert state["w"].eq(3.0**step).all()
        assert torch.equal(state["turned"], state["w"].T)
    assert all(buffer.is_pinned() for buffer in kept._host._buffers)


def test_ordered_dicts_come_back_as_dicts_in_order(kept):
    kept.save(1, OrderedDict(b=1, a=OrderedDict(d=2, c=3)), {}).wait()
    state = kept.newest().state
    assert list(state) == ["b", "a"]
    assert type(state["a"]) is dict


@pytest.mark.parametrize(
    "bad",
    [object(), {1, 2}, torch.ones(2).to_sparse(), torch.empty(2, device="meta"), {(1, 2): 3}, b"bytes", lambda: 0],
    ids=["object", "set", "sparse", "meta", "tuple key", "bytes", "function"],
)
def test_what_cannot_be_saved_is_refused_at_once_and_by_name(kept, bad):
    with pytest.raises(InvalidValue, match=r"state\['extra'\]\[0\]"):
        kept.save(1, {"extra": [bad]}, {})
    assert kept.save(1, state_of(1), {}).wait().step == 1


def test_a_state_that_contains_itself_is_refused(kept):
    state = {}
    state["again"] = state
    with pytest.raises(InvalidValue, match="contain itself"):
        kept.save(1, state, {})


def test_meta_must_be_json_and_comes_back_with_the_version_of_the_code(kept):
    with pytest.raises(InvalidValue, match="meta"):
        kept.save(1, {}, {"cursor": object()})
    kept.save(1, {}, {"world": 3, "cursor": [1, 2]}).wait()
    meta = kept.newest().meta
    assert (meta["world"], meta["cursor"]) == (3, [1, 2])
    assert meta["code_version"]


@pytest.mark.parametrize(("field", "value"), [("keep", 1), ("generation", -1)])
def test_nonsense_is_refused(tmp_path, field, value):
    with pytest.raises(InvalidValue, match=field):
        Checkpoints(tmp_path, **{"writer": "w", "generation": 0, field: value})


def test_an_empty_or_missing_directory_has_no_newest(tmp_path, kept):
    assert kept.newest() is None
    assert newest(tmp_path / "nowhere") is None
    assert newest(tmp_path / "c" / "LOCK") is None


def test_after_close_nothing_can_be_saved(kept):
    pending = kept.save(1, state_of(1), {})
    kept.close()
    assert pending.done
    with pytest.raises(CheckpointFailed, match="close"):
        kept.save(2, state_of(2), {})


# ------------------------------------------------------------------------------------------------ one save at a time


def test_a_save_while_one_is_written_is_skipped_and_the_other_is_handed_out(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    first = kept.save(1, state_of(1), {})
    second = kept.save(2, state_of(2), {})
    assert not first.done, "the disk was waited for"
    assert second is first
    disk.go()
    assert second.wait().step == 1
    assert kept.save(3, state_of(3), {}).wait().step == 3
    assert Directory(kept.directory).steps() == [3, 1]


def test_the_same_step_may_be_committed_twice(kept):
    for _ in range(2):
        assert kept.save(1, state_of(1), {}).wait().step == 1
    assert Directory(kept.directory).steps() == [1]
    assert list((kept.directory / "staging").iterdir()) == []


def test_a_damaged_step_is_replaced_when_it_is_saved_again(kept):
    for step in (1, 2):
        kept.save(step, state_of(step), {}).wait()
    flip_a_bit(kept.directory / "step-2" / "data-0000.bin")
    loaded = kept.newest()
    assert loaded.step == 1
    assert [path.name for path, _ in loaded.skipped] == ["step-2"]
    assert "digest" in loaded.skipped[0][1]
    kept.save(2, state_of(2), {}).wait()
    assert kept.newest().state["w"].eq(2.0).all()


# ------------------------------------------------------------------------------------------------ what is thrown away


def test_as_many_as_asked_for_are_kept(kept):
    for step in range(0, 100, 10):
        kept.save(step, state_of(step), {}).wait()
    assert Directory(kept.directory).steps() == [90, 80, 70]
    assert (kept.directory / "LATEST").read_text() == "step-90\n"


def test_damaged_ones_do_not_count_as_kept(kept):
    for step in (1, 2, 3):
        kept.save(step, state_of(step), {}).wait()
    for step in (2, 3):
        flip_a_bit(kept.directory / f"step-{step}" / "data-0000.bin")
    kept.save(4, state_of(4), {}).wait()
    assert Directory(kept.directory).steps() == [4, 3, 2, 1]  # 4 and 1 are whole; three were to be kept
    kept.save(5, state_of(5), {}).wait()
    kept.save(6, state_of(6), {}).wait()
    assert Directory(kept.directory).steps() == [6, 5, 4]


def test_another_process_s_checkpoints_are_read_before_they_count_as_kept(kept):
    for step in (1, 2, 3):
        kept.save(step, state_of(step), {}).wait()
    (kept.directory / "step-3" / "MANIFEST.json").write_bytes(b"")
    with Checkpoints(kept.directory, keep=2, writer="next", generation=1) as later:
        later.save(4, state_of(4), {}).wait()
    assert Directory(kept.directory).steps() == [4, 3, 2]


def test_the_one_just_committed_stays_even_below_all_others(kept):
    for step in (10, 20, 30):
        kept.save(step, state_of(step), {}).wait()
    kept.save(5, state_of(5), {}).wait()
    assert Directory(kept.directory).steps() == [30, 20, 10, 5]


def test_the_hint_is_not_needed_and_not_believed(kept):
    kept.save(1, state_of(1), {}).wait()
    kept.save(2, state_of(2), {}).wait()
    (kept.directory / "LATEST").write_text("step-1\n")
    assert kept.newest().step == 2
    (kept.directory / "LATEST").unlink()
    assert kept.newest().step == 2


def test_the_staging_of_a_living_writer_stays_and_that_of_a_dead_one_goes(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    pending = kept.save(1, state_of(1), {})
    assert disk.held.wait(120)
    dead = kept.directory / "staging" / "7-dead"
    dead.mkdir()
    (dead / "data-0000.bin").write_bytes(b"half")
    Directory(kept.directory).sweep()
    left = [path.name.split("-")[0] for path in (kept.directory / "staging").iterdir()]
    disk.go()
    assert left == ["1"]
    assert pending.wait().step == 1


def test_staging_older_than_a_day_goes_whoever_holds_it(kept):
    with Directory(kept.directory).open_staging(3) as staging:
        path = staging.place
        day_and_more_s = 86_400 + 60
        Directory(kept.directory).sweep()
        assert path.exists()
        os.utime(path, (time.time() - day_and_more_s,) * 2)
        Directory(kept.directory).sweep()
        assert not path.exists()


# ------------------------------------------------------------------------------------------------ generations


def test_a_writer_of_an_older_generation_cannot_commit(kept):
    kept.save(1, state_of(1), {}).wait()
    with Checkpoints(kept.directory, writer="new", generation=2) as new:
        pending = kept.save(2, state_of(2), {})
        with pytest.raises(StaleWriter, match="generation 2 has begun"):
            pending.wait()
        assert isinstance(pending.error, StaleWriter)
        assert Directory(kept.directory).steps() == [1]
        assert list((kept.directory / "staging").iterdir()) == []
        assert new.save(2, state_of(2), {}).wait().step == 2


def test_a_writer_that_is_fenced_while_it_writes_cannot_commit(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    pending = kept.save(1, state_of(1), {})
    assert disk.held.wait(120)
    kept.fence(2)
    disk.go()
    with pytest.raises(StaleWriter):
        pending.wait()
    assert kept.newest() is None


def test_an_announcement_waits_for_a_commit_that_was_already_allowed(kept, monkeypatch):
    allowed, go = threading.Event(), threading.Event()
    rename = Path.rename

    def slow(path, target):
        allowed.set()
        go.wait(120)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", slow)
    pending = kept.save(1, state_of(1), {})
    assert allowed.wait(120)
    fencing = threading.Thread(target=kept.fence, args=(2,))
    fencing.start()
    fencing.join(0.1)
    assert fencing.is_alive()
    go.set()
    fencing.join(120)
    assert pending.done or pending.wait().step == 1
    assert Directory(kept.directory).steps() == [1]


def test_a_survivor_goes_on_in_the_next_generation(kept):
    kept.advance(2)
    assert kept.generation == 2
    assert kept.save(1, state_of(1), {}).wait().step == 1
    kept.fence(3)
    assert isinstance(fails(kept.save(2, state_of(2), {})), StaleWriter)
    with pytest.raises(InvalidValue, match="generation"):
        kept.advance(1)


def test_a_survivor_that_advances_at_the_last_moment_does_not_fence_off_itself(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    pending = kept.save(1, state_of(1), {})
    assert disk.held.wait(120)
    with Directory(kept.directory).locked():
        disk.go()
        time.sleep(0.1)  # it waits for the lock now, as a writer of generation 1
        advancing = threading.Thread(target=kept.advance, args=(2,))
        advancing.start()
        while Directory(kept.directory).announced() < 2:
            time.sleep(0.001)
    advancing.join(120)
    assert pending.wait().step == 1


def test_where_nothing_was_announced_the_first_generation_may_write(tmp_path):
    (tmp_path / "file").touch()
    assert Directory(tmp_path / "c").announced() == Directory(tmp_path / "file").announced() == 0
    with Checkpoints(tmp_path / "c", writer="w", generation=0) as kept:
        assert kept.save(1, state_of(1), {}).wait().step == 1


def test_an_announcement_is_never_taken_back(kept):
    kept.fence(5)
    kept.fence(3)
    with Checkpoints(kept.directory, writer="late", generation=4):
        assert Directory(kept.directory).announced() == 5
    assert [path.name for path in (kept.directory / "fence").iterdir()] == ["5"]


# ------------------------------------------------------------------------------------------------ the directory


def fails(pending):
    with pytest.raises(CheckpointFailed):
        pending.wait()
    return pending.error


def test_a_directory_removed_between_saves_is_made_again(kept):
    kept.save(1, state_of(1), {}).wait()
    shutil.rmtree(kept.directory)
    assert kept.newest() is None
    kept.save(2, state_of(2), {}).wait()
    assert kept.newest().step == 2


def test_a_directory_removed_while_it_is_written_to_fails_that_save_alone(kept, monkeypatch):
    disk = SlowDisk(monkeypatch)
    pending = kept.save(1, state_of(1), {})
    assert disk.held.wait(120)
    shutil.rmtree(kept.directory)
    disk.go()
    assert "No such file" in fails(pending).why
    assert kept.save(2, state_of(2), {}).wait().step == 2


def test_a_directory_that_cannot_be_made_fails_the_save_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with Checkpoints(tmp_path / "file" / "c", writer="w", generation=1) as kept:
        assert kept.newest() is None
        error = fails(kept.save(1, state_of(1), {}))
        assert "make room" in error.hint
        with pytest.raises(CheckpointFailed):
            kept.fence(2)


def test_a_lock_that_is_never_given_back_is_waited_for_so_long_and_no_longer(kept):
    with (
        Directory(kept.directory).locked(),
        pytest.raises(CheckpointFailed, match="another process"),
        Directory(kept.directory).locked(wait_s=0.05),
    ):
        pass


def test_a_checkpoint_can_be_handed_on_to_torch_distributed_checkpoint(kept, tmp_path):
    import torch.distributed.checkpoint as dcp  # takes a second

    kept.save(1, {"w": torch.arange(10.0), "opt": {"step": 3, "m": torch.ones(2)}}, {}).wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that there is no process group
        dcp.save(kept.newest().state, checkpoint_id=tmp_path / "dcp", no_dist=True)
        other = {"w": torch.zeros(10), "opt": {"step": 0, "m": torch.zeros(2)}}
        dcp.load(other, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(other["w"], torch.arange(10.0))
    assert torch.equal(other["opt"]["m"], torch.ones(2))
    assert other["opt"]["step"] == 3
