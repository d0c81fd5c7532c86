"""Folders of several nodes over one bucket, against a model of them: whatever is written, pulled, pushed and cut short.

The model knows contents, times and what a node has seen of the bucket; it has no files, no index and no tags.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("obstore")

from obstore.store import MemoryStore

from sublet.machine.remote import RemoteObjects
from sublet.runtime.file_sync import mirror as module
from sublet.runtime.file_sync.mirror import Mirror

KEYS = ("a", "in/b")
NODES = (0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NODES), st.sampled_from(KEYS)),
        st.tuples(st.just("delete"), st.sampled_from(NODES), st.sampled_from(KEYS)),
        st.tuples(st.just("pull"), st.sampled_from(NODES), st.booleans()),  # whether it ends before it could note it
        st.tuples(st.just("push"), st.sampled_from(NODES), st.just(False)),
    ),
    max_size=14,
)


class Clocked(RemoteObjects):
    """Its objects have the times of our clock."""

    def __init__(self):
        super().__init__("memory://bucket", MemoryStore())
        self.now_s, self.times = 1000.0, {}

    def upload(self, key, path):
        self.times[key] = self.now_s
        return super().upload(key, path)

    def list(self, prefix=""):
        return [replace(found, changed_s=self.times[found.key]) for found in super().list(prefix)]


@dataclass
class File:
    """On a node: `at_s` is when it was written, `base` the version of the bucket that it is or was made from."""

    text: str
    at_s: float
    base: float | None
    dirty: bool


@dataclass
class Node:
    files: dict[str, File] = field(default_factory=dict)
    wrote: dict[str, float] = field(default_factory=dict)  # what it put into the bucket, and when


def model_pull(node, bucket):
    for key in KEYS:
        mine, theirs = node.files.get(key), bucket.get(key)
        if theirs is None:
            if mine is not None and not mine.dirty:
                del node.files[key]  # another has deleted it
            node.wrote.pop(key, None)
        elif mine is None:
            if node.wrote.get(key) != theirs[1]:
                node.files[key] = File(*theirs, base=theirs[1], dirty=False)
                node.wrote.pop(key, None)
        elif mine.base != theirs[1] and (not mine.dirty or theirs[1] > mine.at_s):
            node.files[key] = File(*theirs, base=theirs[1], dirty=False)
            node.wrote.pop(key, None)


def model_push(node, bucket, now_s):
    for key, mine in node.files.items():
        if mine.dirty:
            bucket[key] = (mine.text, now_s)
            mine.base, mine.dirty, node.wrote[key] = now_s, False, now_s
    for key in [key for key in node.wrote if key not in node.files]:
        if key in bucket and bucket[key][1] == node.wrote.pop(key):
            del bucket[key]


@pytest.fixture(scope="module", autouse=True)
def _nobody_writes():
    """Nothing is open between two steps, and a look at all processes takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_for_writing", lambda **_: set())
        yield


@given(steps=STEPS)
def test_folder_and_bucket_are_what_a_model_without_files_says(steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirrors")
    objects, bucket = Clocked(), {}
    nodes = [Node() for _ in NODES]
    places = [folder / str(number) / "data" for number in NODES]
    mirrors = [Mirror(objects, places[number], folder / str(number) / "index.json") for number in NODES]
    for mirror in mirrors:
        mirror.pull()
    try:
        for number, (what, which, how) in enumerate(steps):
            objects.now_s += 10.0
            node, place, mirror = nodes[which], places[which], mirrors[which]
            if what == "write":
                (place / how).parent.mkdir(exist_ok=True)
                (place / how).write_text(f"{number:03}")
                os.utime(place / how, (objects.now_s, objects.now_s))
                before = node.files.get(how)
                node.files[how] = File(f"{number:03}", objects.now_s, before.base if before else None, dirty=True)
            elif what == "delete":
                (place / how).unlink(missing_ok=True)
                node.files.pop(how, None)
            elif what == "pull":
                if how:
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(Mirror, "_save", lambda *_: None)
                        mirror.pull()
                mirror.pull()
                model_pull(node, bucket)
            else:
                mirror.push(last=True)
                model_push(node, bucket, objects.now_s)
            assert {found.key: objects.get(found.key).data.decode() for found in objects.list()} == {
                key: text for key, (text, _) in bucket.items()
            }
            for each, where in zip(nodes, places, strict=True):
                found = {key: (where / key).read_text() for key in KEYS if (where / key).exists()}
                assert found == {key: file.text for key, file in each.files.items()}
    finally:
        shutil.rmtree(folder)
