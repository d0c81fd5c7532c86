"""Checkpoints of an anchor in a bucket: the newest whole one is there, once, and a new anchor goes on from it."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("obstore", reason="obstore is not installed: pip install '.[store]'")

from obstore.store import MemoryStore

from sublet.errors import BadInput, MissingData
from sublet.machine.files import FILES
from sublet.machine.remote import RemoteObjects
from sublet.runtime.controller.files.checkpoints import Anchor, Commit, Head
from sublet.runtime.controller_host import backup
from sublet.runtime.controller_host.backup import CheckpointCopies, bring_checkpoints, restore_from
from sublet.runtime.file_sync.content import PART_BYTES, Entry, digest_of, write_manifest

JOB = "job-1"


@pytest.fixture
def bucket():
    return RemoteObjects("memory", MemoryStore())


def anchor_of(state):
    return Anchor(state / "checkpoints" / JOB, FILES)


def commit(state, step, parts, *, generation=1, keep=2):
    """As carried there."""
    anchor = anchor_of(state)
    anchor.announce(generation)
    digests = tuple(anchor.content.add(part) for part in parts)
    root = write_manifest(anchor.content, [Entry(path="w.bin", parts=digests, size_bytes=sum(map(len, parts)))])
    anchor.commit(Commit(step=step, generation=generation, root=root, size_bytes=1), keep=keep)
    return root


def copy_all(copies):
    turns = 0
    while copies.write_some():
        turns += 1
    return turns


def bytes_in(bucket):
    return sum(each.size for each in bucket.list() if "pack-" in each.key)


def weights(*marks):
    return [bytes([mark]) * PART_BYTES for mark in marks]


def test_a_new_anchor_goes_on_from_the_newest_in_the_bucket(bucket, tmp_path):
    commit(tmp_path / "a", 10, weights(1, 2))
    root = commit(tmp_path / "a", 20, weights(1, 3), generation=4)
    copy_all(CheckpointCopies(tmp_path / "a", bucket))
    commit(tmp_path / "b", 5, weights(9))  # what the laptop had before it all
    assert bring_checkpoints(bucket, tmp_path / "b") == [f"{JOB}: goes on from step 20"]
    head = anchor_of(tmp_path / "b").head
    assert (head.generation, [each.root for each in head.commits]) == (4, [root])
    (entry,) = anchor_of(tmp_path / "b").entries(head.newest)
    assert b"".join(anchor_of(tmp_path / "b").read(entry)) == b"".join(weights(1, 3))


def test_a_part_is_sent_once_and_what_no_checkpoint_needs_goes(bucket, tmp_path):
    commit(tmp_path, 10, weights(1, 2))
    copies = CheckpointCopies(tmp_path, bucket)
    copy_all(copies)
    before = bytes_in(bucket)
    assert 2 * PART_BYTES < before < 2 * PART_BYTES + 2_000
    commit(tmp_path, 20, weights(1, 2, 3))
    copy_all(CheckpointCopies(tmp_path, bucket))  # of a keeper that was started again
    assert PART_BYTES < bytes_in(bucket) - before < PART_BYTES + 2_000
    commit(tmp_path, 30, weights(7))
    copy_all(copies := CheckpointCopies(tmp_path, bucket))
    assert bytes_in(bucket) < PART_BYTES + 2_000
    assert copy_all(copies) == 0


def test_a_copy_that_was_cut_short_leaves_the_one_before_it_and_goes_on(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "PACK_BYTES", PART_BYTES * 3 // 2)
    commit(tmp_path / "a", 10, weights(1))
    copies = CheckpointCopies(tmp_path / "a", bucket)
    copy_all(copies)
    commit(tmp_path / "a", 20, weights(2, 3, 4, 5, 6))
    assert copies.write_some()  # a part of it, and the host is ended
    assert bring_checkpoints(bucket, tmp_path / "b") == [f"{JOB}: goes on from step 10"]
    sent = bytes_in(bucket)
    assert copy_all(CheckpointCopies(tmp_path / "a", bucket)) >= 2
    assert bytes_in(bucket) < 6 * PART_BYTES + 10_000
    assert sent > 2 * PART_BYTES
    assert bring_checkpoints(bucket, tmp_path / "b") == [f"{JOB}: goes on from step 20"]


def test_newer_checkpoints_do_not_keep_one_from_being_copied_to_its_end(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "PACK_BYTES", 1)
    commit(tmp_path / "a", 10, weights(1, 2, 3), keep=50)
    copies, found = CheckpointCopies(tmp_path / "a", bucket), []
    for step in range(20, 50):
        copies.write_some()
        commit(tmp_path / "a", step, weights(step, step + 50, step + 100), keep=50)
        found += bring_checkpoints(bucket, tmp_path / "b")
    assert any("goes on from step" in said for said in found)


def test_one_of_which_no_copy_is_whole_is_said_to_begin_anew_and_a_damaged_one_is_no_checkpoint(bucket, tmp_path):
    commit(tmp_path / "a", 10, weights(1))
    copies = CheckpointCopies(tmp_path / "a", bucket)
    copies.write_some()
    (said,) = bring_checkpoints(bucket, tmp_path / "b")
    assert "no checkpoint was copied whole" in said
    copy_all(copies)
    (pack,) = [each.key for each in bucket.list() if "pack-" in each.key]
    data = bytearray(bucket.get(pack).data)
    data[-1] ^= 1
    bucket.put(pack, bytes(data))
    with pytest.raises(BadInput, match="damaged"):
        bring_checkpoints(bucket, tmp_path / "c")


def test_checkpoints_of_jobs_that_are_no_more_leave_the_bucket(bucket, tmp_path):
    commit(tmp_path / "a", 10, weights(1))
    copy_all(CheckpointCopies(tmp_path / "a", bucket))
    copy_all(CheckpointCopies(tmp_path / "b", bucket))
    assert bucket.list() == []


def test_without_a_log_there_is_no_backup_whatever_checkpoints_there_are(bucket, tmp_path):
    commit(tmp_path / "a", 10, weights(1))
    copy_all(CheckpointCopies(tmp_path / "a", bucket))
    with pytest.raises(MissingData):
        restore_from(bucket, tmp_path / "b", ())
    assert not (tmp_path / "b").exists()
    assert json.loads(bucket.get(f"checkpoints/{JOB}/HEAD").data)["head"]["commits"][0]["step"] == 10


def test_one_whose_manifest_is_gone_from_the_bucket_replaces_nothing_here(bucket, tmp_path):
    commit(tmp_path / "a", 10, weights(1))
    copy_all(CheckpointCopies(tmp_path / "a", bucket))
    (pack,) = [each.key for each in bucket.list() if "pack-" in each.key]
    bucket.put(pack, b"")
    root = commit(tmp_path / "b", 5, weights(9))
    with pytest.raises(BadInput, match="begins at step 0") as told:
        bring_checkpoints(bucket, tmp_path / "b")
    assert "the checkpoint of step 10 is not whole" in str(told.value)
    assert [each.root for each in anchor_of(tmp_path / "b").head.commits] == [root]


# ---------------------------------------------------------------------- a disk that loses something


def rot(state, root):
    (state / "checkpoints" / JOB / "parts" / root).write_bytes(b"rotten")


def test_a_commit_goes_through_where_what_names_an_earlier_one_has_rotted_and_that_one_goes(tmp_path):
    commit(tmp_path, 10, weights(1))
    rot(tmp_path, commit(tmp_path, 20, weights(2)))
    anchor = anchor_of(tmp_path)
    digests = tuple(anchor.content.add(part) for part in weights(3))
    root = write_manifest(anchor.content, [Entry(path="w.bin", parts=digests, size_bytes=1)])
    assert anchor.commit(Commit(step=30, generation=1, root=root, size_bytes=1), keep=2) == [20]
    again = anchor_of(tmp_path)
    assert [each.step for each in again.head.commits] == [10, 30]  # two that can be read
    assert all(again.is_whole(each) for each in again.head.commits)
    assert len(list((tmp_path / "checkpoints" / JOB / "parts").iterdir())) == len(
        {digest for each in again.head.commits for digest in (*again.names(each), *again.entries(each)[0].parts)}
    )


def test_one_of_which_the_manifest_is_not_here_does_not_count(tmp_path):
    commit(tmp_path, 10, weights(1))
    anchor = anchor_of(tmp_path)
    with pytest.raises(BadInput):
        anchor.commit(Commit(step=20, generation=1, root="0" * 64, size_bytes=1), keep=2)
    assert [each.step for each in anchor_of(tmp_path).head.commits] == [10]


def test_a_register_is_not_adopted_where_a_part_of_its_files_has_not_come(tmp_path):
    commit(tmp_path, 10, weights(1))
    before = anchor_of(tmp_path).head
    anchor = anchor_of(tmp_path)
    come, late = weights(2, 3)
    entry = Entry(path="w.bin", parts=(anchor.content.add(come), digest_of(late)), size_bytes=len(come + late))
    root = write_manifest(anchor.content, [entry])
    found = Head(generation=2, commits=(Commit(step=20, generation=2, root=root, size_bytes=8),))
    with pytest.raises(BadInput, match="1 parts of a checkpoint are not there"):
        anchor.adopt(found)
    again = anchor_of(tmp_path)
    assert again.head == before
    assert again.is_whole(before.newest), "what was there is not removed for it"
    anchor.content.add(late)
    anchor.adopt(found)
    assert anchor_of(tmp_path).head == found
