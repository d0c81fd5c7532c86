"""The process that copies checkpoints to a bucket and back: of workers' directories, and of what agents carried."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
import torch
from obstore.store import MemoryStore

from sublet.cli.work import copying
from sublet.machine.files import FILES
from sublet.machine.remote import RemoteObjects
from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.reading import holds_files
from sublet.runtime.controller.files.buckets import CARRIED, has_checkpoints
from sublet.runtime.controller.files.checkpoints import Anchor, Commit
from sublet.runtime.file_sync.content import LARGE_PART_BYTES
from sublet.runtime.file_sync.packing import pack
from sublet.train.checkpoint.bucket import Bucket
from sublet.train.checkpoint.checkpoints import Checkpoints, newest
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.store import open_store

URI = "s3://bucket/job"


@pytest.fixture(autouse=True)
def bucket(monkeypatch):
    found = Bucket(RemoteObjects(URI, MemoryStore()))
    monkeypatch.setattr(copying, "open_store", lambda place: found if place == URI else open_store(place))
    return found


def save(folder, step, generation=3):
    with Checkpoints(folder, writer="w", generation=generation) as checkpoints:
        checkpoints.save(step, {"w": torch.arange(99_999.0) + step}, {"samples_done": 8 * step}).wait()


def carried(folder, node, *steps):
    """As agents bring them."""
    anchor = Anchor(folder, FILES)
    for step in steps:
        save(node / str(step), step)
        root = pack(anchor.content, node / str(step) / "nothing", {f"step-{step}": node / str(step) / f"step-{step}"})
        anchor.commit(Commit(step=step, generation=3, root=root, size_bytes=1), keep=3)
    return anchor


def told(capsys, *words):
    assert copying.main(*words) == 0
    return json.loads(capsys.readouterr().out)


def test_a_directory_goes_to_the_bucket_and_comes_back(tmp_path, capsys, bucket):
    save(tmp_path / "here", 7)
    done = told(capsys, str(tmp_path / "here"), URI, "3")
    assert (done["step"], bucket.steps()) == (7, [7])
    assert done["size_bytes"] > 4 * 99_999
    assert told(capsys, URI, str(tmp_path / "there"), "3")["step"] == 7
    assert newest(tmp_path / "there").state["w"][5] == 12.0


def test_what_agents_carried_goes_to_the_bucket_and_comes_back_as_they_would_bring_it(tmp_path, capsys, bucket):
    here, there = tmp_path / "checkpoints" / "job-1", tmp_path / "new" / "job-1"
    carried(here, tmp_path / "node", 7, 9)
    assert told(capsys, f"{CARRIED}{here}", URI, "3")["step"] == 9
    assert bucket.steps() == [9]
    assert told(capsys, URI, f"{CARRIED}{there}", "3")["step"] == 9
    anchor = Anchor(there, FILES)
    (commit,) = anchor.head.commits
    assert (commit.step, commit.generation, commit.done) == (9, 3, 72.0)
    for entry in anchor.entries(commit):
        path = tmp_path / "node" / "9" / entry.path
        assert b"".join(anchor.read(entry)) == path.read_bytes()
    assert {entry.path for entry in anchor.entries(commit)} == {
        str(path.relative_to(tmp_path / "node" / "9")) for path in (tmp_path / "node" / "9" / "step-9").iterdir()
    }
    assert not (there / "brought").exists()


def test_a_carried_one_whose_part_is_damaged_is_passed_over(tmp_path, capsys, bucket):
    here = tmp_path / "checkpoints" / "job-1"
    anchor = carried(here, tmp_path / "node", 7, 9)
    newest_commit = anchor.head.newest
    data = next(entry for entry in anchor.entries(newest_commit) if "data" in entry.path)
    (hurt,) = [path for path in Path(here / "parts").rglob(f"*{data.parts[0]}*") if path.is_file()]
    hurt.write_bytes(b"rot")
    assert told(capsys, f"{CARRIED}{here}", URI, "3")["step"] == 7


def test_a_file_larger_than_memory_would_be_is_never_held_whole(tmp_path, monkeypatch):
    """By the most that Python has had meanwhile: parts of it, whichever way it goes."""
    here, size = tmp_path / "job-1", 80 * LARGE_PART_BYTES
    with Checkpoints(tmp_path / "node", writer="w", generation=3) as checkpoints:
        checkpoints.save(9, {"w": torch.zeros(size // 4)}, {}).wait()
    anchor = Anchor(here, FILES)
    root = pack(anchor.content, tmp_path / "node" / "nothing", {"step-9": tmp_path / "node" / "step-9"})
    anchor.commit(Commit(step=9, generation=3, root=root, size_bytes=size), keep=3)
    monkeypatch.setattr(copying, "open_store", lambda place: Directory(tmp_path / "far" if place == URI else place))
    tracemalloc.start()
    try:
        assert copying.send(f"{CARRIED}{here}", URI, 3).size_bytes > size
        assert copying.bring(URI, f"{CARRIED}{tmp_path / 'new'}", 3).step == 9
        assert tracemalloc.get_traced_memory()[1] < size // 2
    finally:
        tracemalloc.stop()


def test_where_there_is_nothing_that_is_said(tmp_path, capsys):
    assert told(capsys, URI, str(tmp_path / "x"), "3")["step"] == -1
    assert told(capsys, URI, f"{CARRIED}{tmp_path / 'y'}", "3")["step"] == -1
    assert told(capsys, f"{CARRIED}{tmp_path / 'z'}", URI, "3")["step"] == -1


def test_what_goes_wrong_is_said_and_ends_with_1(tmp_path, capsys):
    save(tmp_path / "saved", 9)
    told(capsys, str(tmp_path / "saved"), URI, "3")
    told(capsys, URI, f"{CARRIED}{tmp_path / 'here'}", "3")
    for head in (tmp_path / "here").glob("HEAD*"):  # beside parts that it may name
        head.write_text("not json")
    assert copying.main(f"{CARRIED}{tmp_path / 'here'}", URI, "3") == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["", CARRIED])
def test_a_bring_that_was_cut_short_left_nothing_to_go_on_from(tmp_path, capsys, monkeypatch, way):
    save(tmp_path / "before", 40)
    told(capsys, str(tmp_path / "before"), URI, "3")
    place = tmp_path / "here"

    def killed(*_, **__):
        raise SystemExit(9)

    assert not has_checkpoints(f"{way}{place}", DISK)
    with monkeypatch.context() as patch:  # after all bytes have come, and before they count
        patch.setattr(Directory, "commit", killed) if not way else patch.setattr(Anchor, "commit", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(SystemExit):
            copying.main(URI, f"{way}{place}", "3")
    assert holds_files(str(place), DISK)
    assert not has_checkpoints(f"{way}{place}", DISK)
    assert told(capsys, URI, f"{way}{place}", "3")["step"] == 40
    assert has_checkpoints(f"{way}{place}", DISK)
