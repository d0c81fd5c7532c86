"""What an agent does before a worker starts, step by step: how much is under way, what is told, when it gives up."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace

import pytest

from sublet.runtime.agent.keeping import Keeping
from sublet.runtime.agent.preparing import AT_ONCE, TELL_S, Preparations
from sublet.runtime.agent.users import as_we_are
from sublet.runtime.file_sync.content import AGAIN_S, MOST_BYTES, MOST_DAMAGED, MOST_PARTS, PART_BYTES, Content
from sublet.runtime.file_sync.packing import pack_texts
from sublet.wire.files import Kept, Lacks, Part, Preparing, Printed, Travel
from sublet.wire.messages import EXIT_LOST, StartWorker
from sublet_lab.world.machine import MemoryFiles
from sublet_lab.world.storage import Storage

LARGE = {"a.bin": bytes(range(256)) * 8000, "b.bin": b"b" * (AT_ONCE + 1), "c.txt": b"c"}
SMALL = {f"{number}.txt": str(number).encode() for number in range(500)}


class Scene:
    """A node and the store of its controller; nothing happens but what a test does."""

    def __init__(self):
        self.said, self.started, self.ended, self.now_s = [], [], [], 100.0
        self.warm = True
        self.store, self.files = Content(Path("/state/content"), MemoryFiles()), MemoryFiles()
        self.storage = Storage(lambda: self.now_s)
        wall = SimpleNamespace(monotonic=lambda: self.now_s)
        machine = SimpleNamespace(
            files=self.files,
            wall=wall,
            disk=self.storage,
            processes=None,
            warm=lambda: self.warm,
            home=lambda *_: Path("/home/job"),
            give=lambda *_: None,
            acting=as_we_are,
        )
        crew = SimpleNamespace(
            knows=lambda worker_id: False,
            start=lambda order, env, host: self.started.append(order),
            never_began=lambda worker_id, code, why: self.ended.append((worker_id, code, why)),
        )
        keeping = Keeping(Path("/node"), machine, self.said.append, answer=None, tell_end=None)
        self.node = Preparations(Path("/node"), machine, crew, self.said.append, keeping)

    def start(self, texts, worker_id="job-1.1.0"):
        travel = Travel(code=pack_texts(self.store, texts))
        order = StartWorker(worker_id=worker_id, job_id="job-1", argv=("train",), cwd="/home/u/work", travel=travel)
        self.node.start(order, {}, "host")

    def asked(self):
        """What was asked for since the last look, and is answered next."""
        found = [digest for message in self.said if isinstance(message, Lacks) for digest in message.digests]
        self.said.clear()
        return found

    def answer(self, digests, spoil=lambda data: data):
        for digest in digests:
            packed = self.store.packed(digest) or b""
            self.node.hear(Part(digest=digest, data=spoil(packed)))

    def fetch_all(self):
        while asked := self.asked():
            self.answer(asked)

    def wait(self, seconds):
        self.now_s += seconds
        self.node.keep_time(self.now_s)


@pytest.fixture
def scene():
    return Scene()


@pytest.mark.parametrize("texts", [LARGE, SMALL])
def test_few_parts_are_under_way_at_a_time_and_all_come(scene, texts):
    scene.start(texts)
    under_way = scene.asked()
    while under_way:
        sizes = [len(scene.store.data(digest)) for digest in under_way]
        assert sum(sizes) <= MOST_BYTES
        assert len(sizes) <= MOST_PARTS
        scene.answer(under_way[:1])  # one at a time: each makes room for others
        under_way = under_way[1:] + scene.asked()
    for _ in range(10):
        scene.wait(0.0)
    (order,) = scene.started
    assert {name: scene.files.read(Path(order.cwd) / name) for name in texts} == texts
    assert order.cwd.startswith("/node/work/job-1-")
    assert order.travel is None


def test_large_directories_are_put_together_between_two_looks_at_the_lines(scene):
    scene.start(LARGE)
    scene.fetch_all()
    assert scene.started == []
    assert scene.node.due_s() < scene.now_s, "it goes on at once"
    assert not any(path.name.endswith(".whole") for path in scene.files.contents)
    scene.wait(0.0)
    assert len(scene.started) == 1


def test_what_does_not_come_is_asked_for_again_and_by_every_new_line(scene):
    scene.start(SMALL)
    first = scene.asked()
    scene.wait(AGAIN_S - 1.0)
    assert scene.asked() == []
    scene.wait(1.0)
    assert scene.asked() == first
    scene.node.line_is_new()
    assert scene.asked() == first
    scene.answer(first)
    scene.answer(first)  # twice does no harm
    scene.fetch_all()
    assert len(scene.started) == 1


def test_that_a_worker_is_prepared_is_told_while_something_comes_and_no_longer(scene):
    scene.start(LARGE)
    scene.wait(0.0)
    assert [said.worker_id for said in scene.said if isinstance(said, Preparing)] == ["job-1.1.0"]
    scene.answer(scene.asked())
    scene.wait(TELL_S)
    assert any(isinstance(said, Preparing) for said in scene.said)
    scene.said.clear()
    for _ in range(100):
        scene.wait(TELL_S)
    assert not any(isinstance(said, Preparing) for said in scene.said)


def test_a_part_that_comes_damaged_is_asked_for_again_until_it_is_too_much(scene):
    scene.start(SMALL)
    for _ in range(MOST_DAMAGED + 1):
        assert scene.ended == []
        scene.answer(scene.asked(), spoil=lambda data: data[:-1] + b"x")
    ((worker_id, code, why),) = scene.ended
    assert (worker_id, code) == ("job-1.1.0", EXIT_LOST)
    assert "damaged" in why
    scene.start(SMALL, "job-1.1.1")  # another try begins anew
    scene.fetch_all()
    assert [order.worker_id for order in scene.started] == ["job-1.1.1"]


def test_a_part_that_the_node_has_lost_since_is_fetched_again(scene):
    scene.start({"a.txt": b"a" * PART_BYTES, "b.txt": b"b"})
    scene.fetch_all()
    for path in [path for path in scene.files.contents if "content" in path.parts][:2]:
        scene.files.contents[path] = b"rot"
    scene.start({"a.txt": b"a" * PART_BYTES, "b.txt": b"b", "c.txt": b"c"}, "job-1.1.1")
    scene.fetch_all()
    scene.wait(0.0)
    scene.fetch_all()
    scene.wait(0.0)
    assert [order.worker_id for order in scene.started] == ["job-1.1.0", "job-1.1.1"]
    assert scene.files.read(Path(scene.started[1].cwd) / "a.txt") == b"a" * PART_BYTES


def test_a_node_without_room_ends_what_waits_and_tries_the_next(scene):
    scene.start(SMALL)
    scene.files.full = True
    scene.fetch_all()
    ((worker_id, code, why),) = scene.ended
    assert (worker_id, code) == ("job-1.1.0", EXIT_LOST)
    assert "no space left" in why
    scene.files.full = False
    scene.start(SMALL, "job-1.1.1")
    scene.fetch_all()
    assert len(scene.started) == 1


# ---------------------------------------------------------------------- output


def test_one_piece_of_output_is_under_way_and_the_next_goes_from_where_the_answer_says(scene):
    logs = scene.node.logs
    scene.storage.append("/log", "x" * 200_000)
    logs.add("w", "/log")
    scene.wait(1.0)
    scene.wait(1.0)
    (piece,) = scene.said
    assert (piece.offset, len(base64.b64decode(piece.data))) == (0, 65_536)
    logs.note_kept(Kept(worker_id="w", offset=60_000))  # the rest of it did not arrive
    assert len(scene.said) == 1
    scene.wait(11.0)
    assert scene.said[-1].offset == 60_000
    logs.note_kept(Kept(worker_id="w", offset=125_536))
    assert scene.said[-1].offset == 125_536


def test_the_last_output_of_a_worker_goes_at_once_and_is_remembered_until_it_is_kept(scene):
    logs = scene.node.logs
    scene.storage.append("/log", "x" * 200_000)
    logs.add("w", "/log")
    logs.let_go("w")
    assert [said.offset for said in scene.said if isinstance(said, Printed)] == [0, 65_536, 131_072, 196_608]
    scene.said.clear()
    scene.node.line_is_new()
    assert [said.offset for said in scene.said] == [0]
    logs.note_kept(Kept(worker_id="w", offset=200_000))
    scene.wait(1.0)
    assert logs.due_s() == float("inf"), "nobody prints any more"


def test_files_travel_while_libraries_are_imported_and_nobody_begins_before(scene):
    scene.warm = False
    scene.start(SMALL)
    scene.fetch_all()
    for _ in range(10):
        scene.wait(TELL_S)
    assert not scene.started
    assert [each.what for each in scene.said if isinstance(each, Preparing)][-1] == "its libraries are imported"
    scene.warm = True
    scene.wait(0.0)
    assert [order.worker_id for order in scene.started] == ["job-1.1.0"]


def test_who_needs_no_files_waits_for_libraries_too(scene):
    scene.warm = False
    scene.node.start(StartWorker(worker_id="job-1.1.0", job_id="job-1", argv=("train",), cwd="/w"), {}, "host")
    scene.wait(TELL_S)
    assert not scene.started
    scene.warm = True
    scene.wait(TELL_S)
    assert [(order.worker_id, order.cwd) for order in scene.started] == [("job-1.1.0", "/w")]
