"""Copies of checkpoints between the controller's disk and a bucket: whole or not there, wherever they die."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from obstore.store import MemoryStore

from sublet.errors import StaleWriter
from sublet.machine.remote import RemoteObjects
from sublet.testing.interrupted import Orders, Stopped
from sublet.train.checkpoint.bucket import Bucket
from sublet.train.checkpoint.checkpoints import Checkpoints
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.store import copy_newest
from tests.rigs.sizes import sized
from tests.rigs.stores import DirectoryRig, ObjectsRig


def state(step):
    return {"w": torch.full((7, 3), float(step)), "steps": step}


def save(place, *steps, generation=1):
    with Checkpoints(place, writer="w", generation=generation) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {"world": 2}).wait()


def loaded(store):
    with Checkpoints(store, writer="r", generation=0) as checkpoints:
        found = checkpoints.newest()
    return None if found is None else (found.step, found.state["steps"], float(found.state["w"][0, 0]))


@pytest.fixture
def bucket():
    return Bucket(RemoteObjects("memory://job", MemoryStore()))


def test_the_newest_whole_one_goes_to_the_bucket_and_comes_back_to_the_bit(tmp_path, bucket):
    save(tmp_path / "here", 10, 20)
    done = copy_newest(Directory(tmp_path / "here"), bucket, keep=2)
    assert (done.step, bucket.steps()) == (20, [20])
    assert done.size_bytes > 84
    again = copy_newest(Directory(tmp_path / "here"), bucket, keep=2)
    assert (again.step, again.size_bytes) == (20, 0)  # it is there already
    back = copy_newest(bucket, Directory(tmp_path / "there"), keep=2)
    assert (back.step, loaded(Directory(tmp_path / "there"))) == (20, (20, 20, 20.0))
    theirs, ours = (tmp_path / where / "step-20" / "MANIFEST.json" for where in ("there", "here"))
    assert theirs.read_bytes() == ours.read_bytes()


def test_a_worker_goes_on_in_the_bucket_that_the_controller_filled(tmp_path, bucket):
    save(tmp_path, 10, generation=4)
    copy_newest(Directory(tmp_path), bucket, keep=2)
    save(bucket, 20, generation=5)
    assert bucket.steps() == [20, 10]


def test_where_there_is_nothing_nothing_is_copied(tmp_path, bucket):
    assert copy_newest(Directory(tmp_path), bucket, keep=2) is None
    assert copy_newest(bucket, Directory(tmp_path), keep=2) is None


def test_a_damaged_one_is_passed_over_and_said(tmp_path, bucket):
    save(tmp_path, 10, 20)
    DirectoryRig(tmp_path).flip(20)
    done = copy_newest(Directory(tmp_path), bucket, keep=2)
    assert (done.step, bucket.steps()) == (10, [10])
    assert "step-20" in done.skipped[0]


def test_as_many_are_kept_as_were_asked_for(tmp_path, bucket):
    for step in (10, 20, 30):
        save(tmp_path, step)
        copy_newest(Directory(tmp_path), bucket, keep=2)
    assert bucket.steps() == [30, 20]


def test_the_same_step_of_another_life_takes_the_place_of_the_old_one(tmp_path, bucket):
    save(tmp_path / "old", 10, generation=1)
    copy_newest(Directory(tmp_path / "old"), bucket, keep=2)
    with Checkpoints(tmp_path / "new", writer="w", generation=2) as checkpoints:
        checkpoints.save(10, state(99), {}).wait()
    copy_newest(Directory(tmp_path / "new"), bucket, keep=2)
    assert loaded(bucket) == (10, 99, 99.0)


def test_a_stale_controller_copies_over_nobody(tmp_path, bucket):
    save(tmp_path / "stale", 30, generation=1)
    save(tmp_path / "new", 20, generation=2)
    copy_newest(Directory(tmp_path / "new"), bucket, keep=2)
    with pytest.raises(StaleWriter):
        copy_newest(Directory(tmp_path / "stale"), bucket, keep=2)
    assert loaded(bucket) == (20, 20, 20.0)


@pytest.mark.parametrize("way", ["out", "back"])
def test_a_copy_that_dies_between_any_two_orders_leaves_the_one_before_or_the_new_one(tmp_path, way):
    source = Directory(tmp_path / "source") if way == "out" else Bucket(RemoteObjects("memory://s", MemoryStore()))
    save(source, 10)
    first = copied_aside(source, tmp_path / "first")
    save(source, 20, generation=2)
    moments, found = 0, set()
    for at in count(1, sized(4, 1)):
        rig = ObjectsRig(RemoteObjects("memory://job", MemoryStore()))
        rig = rig if way == "out" else DirectoryRig(tmp_path / str(at))
        copy_newest(first, rig.open(Orders()), keep=2)
        try:
            copy_newest(source, rig.open(Orders(at)), keep=2)
        except Stopped:
            found.add(loaded(rig.open(Orders())))
            assert copy_newest(source, rig.open(Orders()), keep=2).step == 20  # nothing is in the way of the next
            moments += 1
        else:
            break
    assert loaded(rig.open(Orders())) == (20, 20, 20.0)
    assert found == {(10, 10, 10.0), (20, 20, 20.0)}
    assert moments > 5


def copied_aside(source, folder):
    copy_newest(source, Directory(folder), keep=2)
    return Directory(folder)
