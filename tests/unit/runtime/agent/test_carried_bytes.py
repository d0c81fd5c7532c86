"""Parts of checkpoints as bytes: behind whatever else is said, to the disk together, read with care if doubted."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections import Counter
from pathlib import Path

import pytest

from sublet.machine.files import FILES
from sublet.runtime.agent.link import Link
from sublet.runtime.engines.server import Line
from sublet.runtime.file_sync import content as contents
from sublet.runtime.file_sync.content import LARGE_PART_BYTES as PART_BYTES
from sublet.runtime.file_sync.content import Content, Keep, digest_of
from sublet.wire.files import Part
from sublet.wire.lines import to_frame, to_line
from sublet.wire.messages import Hello, SaveNow
from sublet_lab.world.machine import MemoryFiles
from tests.rigs.carried import JOB, Scene

PARTS = [Part(digest=name, data=name.encode() * 1000) for name in "abcd"]
ORDER = SaveNow(worker_id="w")


class Narrow:
    """A socket that takes a little, and then no more until it is told to."""

    def __init__(self):
        self.sent, self.room = b"", 0

    def getsockopt(self, *_):
        return 0

    def send(self, data):
        taken = bytes(data[: self.room])
        if not taken:
            raise BlockingIOError
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def close(self):
        """Nothing is left open."""


class Nobody(selectors.DefaultSelector):
    """Watches nothing."""

    def register(self, *_):
        """As it says."""

    modify = unregister = register


def test_what_an_agent_says_waits_for_the_rest_of_one_part_at_most():
    way = Narrow()
    link = Link("unix:/x", Nobody(), dial=lambda _: way)
    link.connect()
    assert link.attend(selectors.EVENT_WRITE)
    for part in PARTS:
        link.carry(to_frame(part))
    way.room = 10
    link.flush()
    link.send(to_line(ORDER))
    way.room = 1 << 20
    link.flush()
    first, *rest = map(to_frame, PARTS)
    assert way.sent == b"".join([first, to_line(ORDER), *rest])


def test_parts_are_lost_with_the_line_that_they_were_asked_for_on_and_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr("sublet.runtime.agent.link.MOST_CARRIED", 2500)
    ways = iter([Narrow(), way := Narrow()])
    link = Link("unix:/x", Nobody(), dial=lambda _: next(ways))
    for _ in range(2):
        link.connect()
        link.attend(selectors.EVENT_WRITE)
        link.send(to_line(ORDER))
        for part in PARTS:
            link.carry(to_frame(part))
    way.room = 1 << 20
    link.flush()
    assert way.sent == to_line(ORDER) * 2 + to_frame(PARTS[0]) + to_frame(PARTS[1])


class Pipe(asyncio.Transport):
    """What was written, in order; full after every write, until it is told to be not."""

    def __init__(self, line):
        super().__init__()
        self.line, self.written = line, []

    def write(self, data):
        self.written.append(data)
        self.line.pause_writing()

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        assert (high, low) == (1, 0), "nothing more is written before all that was written has left"


class Owner:
    """Hears nothing."""

    def add_unknown(self, line):
        """As it says."""

    drop_line = add_unknown


@pytest.mark.parametrize("frames", [True, False])
def test_an_order_waits_for_the_rest_of_one_part_at_most_and_an_older_agent_gets_lines(frames):
    async def scene():
        line = Line(Owner())
        pipe = Pipe(line)
        line.connection_made(pipe)
        line.settle()
        line.admit(Hello(node_id="n", token="", pid=1, frames=frames))
        for part in PARTS:
            assert line.send(part)
        assert line.send(ORDER)
        for _ in PARTS:
            line.resume_writing()
        return pipe.written

    written = asyncio.run(scene())
    first, *rest = map(to_frame, PARTS)
    lines = [*map(to_line, PARTS), to_line(ORDER)]
    assert written == ([first, to_line(ORDER), *rest] if frames else lines)


# ---------------------------------------------------------------------- the disk


def test_parts_go_to_the_disk_together_each_once_and_their_folder_once(tmp_path, monkeypatch):
    synced, fsync = Counter(), os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.update([str(Path(f"/proc/self/fd/{fd}").readlink())]) or fsync(fd)
    )
    content = Content(tmp_path / "parts", FILES, Keep.RAW)
    datas = [bytes([each]) * 1000 for each in range(20)]
    assert all(content.take(digest_of(data), data) for data in datas)
    assert not synced
    content.settle()
    assert sorted(synced.values()) == [1] * 21
    assert synced[str(tmp_path / "parts")] == 1
    again = Content(tmp_path / "parts", FILES, Keep.RAW)
    assert [again.data(digest_of(data)) for data in datas] == datas


def test_what_was_not_forced_to_the_disk_is_not_believed_by_a_later_process_and_little_of_it_is_left(monkeypatch):
    monkeypatch.setattr(contents, "MOST_DRAFTS", 5000)
    files, folder = MemoryFiles(), Path("/parts")
    content = Content(folder, files, Keep.RAW)
    datas = [bytes([each]) * 1000 for each in range(13)]
    for data in datas:
        content.take(digest_of(data), data)
    assert [content.data(digest_of(data)) for data in datas] == datas
    later = Content(folder, files, Keep.RAW)
    assert later.lacks(map(digest_of, datas)) == [digest_of(data) for data in datas[10:]]
    assert len(files.contents) == 13, "whoever reads removes nothing: somebody else may write"
    later.take(digest_of(b"new"), b"new")
    assert len(files.contents) == 11, "what nobody believes does not fill the disk"
    passing = Content(folder, files, Keep.PASSING)
    assert len(passing.lacks(map(digest_of, datas))) == 13


def test_parts_that_an_earlier_version_has_packed_are_read(tmp_path):
    packed = Content(tmp_path / "parts")
    digest = packed.add(b"weights" * 1000)
    assert packed.packed(digest) != b"weights" * 1000
    assert Content(tmp_path / "parts", FILES, Keep.RAW).data(digest) == b"weights" * 1000


@pytest.mark.parametrize("first", [b"x", b"y"])
def test_a_part_that_is_not_packed_is_taken_for_what_its_name_says_whatever_it_begins_with(first):
    data = first + b"\x01" + bytes(range(256)) * 4
    content = Content(Path("/parts"), MemoryFiles(), Keep.RAW)
    assert not content.take(digest_of(data), data + b"more")
    assert content.take(digest_of(data), data)
    assert content.data(digest_of(data)) == data


# ---------------------------------------------------------------------- a file that changes and does not look so


def test_a_file_that_has_changed_and_looks_the_same_is_read_again_when_what_came_of_it_is_doubted(tmp_path):
    scene = Scene(tmp_path)
    host = scene.host("a")
    host.start_script(1)
    host.write("model.bin", b"a" * 3 * PART_BYTES)
    while not (finder_has := host.keeping.carrying._jobs[JOB].snapshot) or finder_has.root == "":
        scene.now_s += 1.0
        host.keeping.keep_time(scene.now_s)
    host.write("model.bin", b"b" * 3 * PART_BYTES)
    os.utime(host.place / "model.bin", ns=(0, max(facts.written_ns for facts in finder_has._files.values())))
    scene.wait(30.0)
    anchor = scene.pulling.anchor(JOB)
    (entry,) = anchor.entries(anchor.head.newest)
    assert b"".join(anchor.read(entry)) == b"b" * 3 * PART_BYTES
    assert scene.alarms == []


def test_a_part_is_hashed_once_at_each_end(tmp_path, monkeypatch):
    hashed = Counter()

    def count(data):
        hashed.update([len(data)])
        return digest_of(data)

    for module in ("file_sync.content", "agent.snapshots"):
        monkeypatch.setattr(f"sublet.runtime.{module}.digest_of", count)
    scene = Scene(tmp_path)
    first, second = scene.host("a"), scene.host("b")
    first.save(first.start(1), 10, 1, os.urandom(5 * PART_BYTES))
    scene.run()
    assert scene.head.newest.step == 10
    assert hashed[PART_BYTES] == 5 + 5
    hashed.clear()
    assert second.load(second.start(2), 2) == 10
    assert hashed[PART_BYTES] == 5, "the controller leaves it to whoever gets them"
