"""Checkpoints on a node's own disk: carried to the controller, brought to the next node, whatever is lost between."""

from __future__ import annotations

import random

import pytest

from sublet.runtime.agent.disk import DISK
from sublet.runtime.agent.keeping import AGAIN_S, STALLED_S, TELL_S
from sublet.runtime.controller.files.checkpoints import STALE, UNDER_WAY_BYTES
from sublet.runtime.file_sync.content import LARGE_PART_BYTES as PART_BYTES
from sublet.runtime.file_sync.content import Entry, digest_of, write_manifest
from sublet.wire.files import HURRY_S, Carried, Lacks, Newest, Offered, Part, Preparing, Uncarried, Wants
from sublet.wire.messages import EXIT_LEFT, WorkerDown
from tests.rigs.carried import JOB, Scene

DATA = random.Random("weights").randbytes(3 * PART_BYTES + 1000)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_a_checkpoint_outlives_its_host_and_the_next_one_goes_on_from_it(scene):
    first = scene.host("a")
    worker = first.start(1)
    assert first.order.env["SUBLET_CHECKPOINT_DIR"].startswith(str(first.folder))
    assert first.load(worker, 1) is None
    first.save(worker, 40, 1, DATA)
    scene.run()
    (saved,) = scene.saved
    assert (saved.step, saved.done, saved.tier, saved.safe) == (40, 320.0, "anchor", True)
    assert saved.size_bytes > len(DATA)
    scene.lose("a")
    second = scene.host("b")
    assert second.load(second.start(2), 2) == 40
    assert (second.directory.place_of(40) / "data-0000.bin").read_bytes() == DATA


def test_carrying_counts_from_when_its_host_begins_to_read_it(scene, monkeypatch):
    """What a host is given notice for, and how often a job saves, follows from that: not from the line alone."""
    host, piece = scene.host("a"), type(DISK).piece

    def slow(self, *args, **facts):
        scene.now_s += 0.5
        return piece(self, *args, **facts)

    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    monkeypatch.setattr(type(DISK), "piece", slow)
    scene.run()
    (saved,) = scene.saved
    assert saved.seconds == pytest.approx(0.5 * 2 * (4 + 2)), "each part, the tree and the manifest: named, and sent"


def test_only_what_a_host_lacks_is_sent(scene):
    first, second = scene.host("a"), scene.host("b")
    worker = first.start(1)
    first.save(worker, 10, 1, DATA)
    scene.run()
    scene.parts_sent()
    assert first.load(first.start(2), 2) == 10
    sizes = [len(part.data) for part in scene.parts_sent()]
    assert len(sizes) == 2, "the manifest, and none of what it names"
    first.save(worker, 20, 2, DATA)  # the same bytes: at the controller they are already
    scene.run()
    asked = [digest for lacks in scene.parts_sent(Lacks) for digest in lacks.digests]
    assert len(asked) == 4, "root, manifest, and what is new of the step: its tree and its own manifest"
    assert second.load(second.start(3), 3) == 20


@pytest.mark.parametrize("lost", ["line", "host", "controller"])
def test_whatever_is_lost_between_two_messages_nothing_that_was_saved_is(tmp_path, lost):
    """And nothing is loaded that is not whole: `load` reads all of it."""
    whole = _carry_twice(Scene(tmp_path / "whole"))
    assert whole > 20
    for cut in range({"line": 1, "host": 3, "controller": 5}[lost], whole, 6):
        scene = Scene(tmp_path / str(cut))
        _carry_twice(scene, cut)
        said = max((saved.step for saved in scene.saved), default=None)
        if lost == "line":
            scene.new_lines()
        elif lost == "controller":
            scene.begin()
            scene.new_lines()
        else:
            scene.lose("a")
        scene.run()
        host = scene.host("b")
        found = host.load(host.start(5), 5)
        if lost == "host":
            assert (found or 0) >= (said or 0)
        else:
            scene.wait(AGAIN_S)
            assert scene.head.newest.step == 20, "it is offered again, and carried"


def _carry_twice(scene, turns=10_000):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    done = scene.run(turns)
    host.save(worker, 20, 1, DATA[::-1])
    return done + scene.run(turns - done)


def test_a_host_that_was_away_replaces_nothing_and_what_it_has_is_not_gone_on_from(scene):
    away, other = scene.host("a"), scene.host("b")
    worker = away.start(1)
    away.save(worker, 10, 1)
    scene.run()
    later = other.start(2)
    assert other.load(later, 2) == 10
    scene.parts_sent()
    away.save(worker, 90, 1)  # it does not know that it is alone
    scene.run()
    assert scene.parts_sent(Lacks) == [], "nobody asks for any of it"
    assert [commit.step for commit in scene.head.commits] == [10]
    assert any(STALE in line for line in away.logged)
    other.save(later, 20, 2)
    scene.run()
    assert away.load(away.start(3), 3) == 20
    assert away.directory.steps() == [20, 10]


def test_what_is_still_being_carried_when_a_later_start_goes_on_from_an_older_one_is_never_committed(scene):
    """All of it comes: who may commit is asked again when the last part is here."""
    away, other = scene.host("a"), scene.host("b")
    worker = away.start(1)
    away.save(worker, 10, 1)
    scene.run()
    away.save(worker, 20, 1, DATA)
    while not any(isinstance(message, Part) for message in away.out):
        assert scene.turn()
    other.start(2)
    assert [commit.step for commit in scene.head.commits] == [10]
    scene.pulling.receive("b", Wants(worker_id=f"{JOB}.2.0", generation=2))  # before any part of it has come
    scene.run()
    assert [commit.step for commit in scene.head.commits] == [10]
    assert [saved.step for saved in scene.saved] == [10]
    assert any(STALE in line for line in away.logged)


def test_what_is_newer_on_the_disk_is_gone_on_from_if_nobody_else_has(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1)
    scene.run()
    host.save(worker, 20, 1)
    host.begin()  # the agent is another one, and has carried nothing of it
    assert host.load(host.start(2), 2) == 20


def test_a_later_answer_to_the_same_question_is_the_same(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1)
    scene.run()
    host.save(worker, 20, 1)
    host.begin()
    worker = host.start(2)
    scene.pulling.receive("a", Wants(worker_id=worker, generation=2))
    scene.down.clear()  # it never came
    assert host.load(worker, 2) == 20


def test_as_many_are_kept_as_the_job_wants_and_no_part_more(tmp_path):
    scene = Scene(tmp_path, keep=2)
    host = scene.host("a")
    worker = host.start(1)
    for step in (10, 20, 30):
        host.save(worker, step, 1, bytes([step]) * PART_BYTES)
        scene.run()
    anchor = scene.pulling.anchor(JOB)
    assert [commit.step for commit in anchor.head.commits] == [20, 30]
    kept = {path.name for path in scene.files.contents}
    assert digest_of(bytes([10]) * PART_BYTES) not in kept
    assert {digest_of(bytes([step]) * PART_BYTES) for step in (20, 30)} <= kept
    (data,) = [entry for entry in anchor.entries(anchor.head.newest) if entry.path.endswith("data-0000.bin")]
    assert b"".join(anchor.read(data)) == bytes([30]) * PART_BYTES


def test_a_checkpoint_that_has_rotted_at_the_controller_is_passed_over_for_the_one_before_it_and_that_is_told(scene):
    first, second = scene.host("a"), scene.host("b")
    worker = first.start(1)
    for step in (10, 20):
        first.save(worker, step, 1, bytes([step]) * PART_BYTES)
        scene.run()
    scene.lose("a")
    scene.files.contents[scene.pulling.anchor(JOB).content.folder / digest_of(bytes([20]) * PART_BYTES)] = b"rot"
    second.keeping.bring(Wants(worker_id=second.start(2), generation=2))
    scene.run()
    assert "no longer there" in second.answers[-1].why, "it is found when it is read, and nobody begins at step 0"
    assert second.load(second.start(3), 3) == 10
    assert ["checkpoint 20" in text for text in scene.alarms] == [True]


def test_a_register_that_is_damaged_is_read_from_its_copy_and_is_no_empty_one_without(scene):
    host = scene.host("a")
    host.save(host.start(1), 10, 1)
    scene.run()
    folder = scene.pulling.anchor(JOB).folder
    for names, found in ((["HEAD"], 10), (["HEAD", "HEAD.copy"], None)):
        for name in names:
            scene.files.contents[folder / name] = b'{"generation": 1, "com'
        scene.begin()
        scene.pulling.receive("a", Wants(worker_id=f"{JOB}.1.0", generation=1))
        assert [message.step for _, message in scene.down] == ([] if found is None else [found])
    assert "cannot be read" in scene.alarms[-1]


@pytest.mark.parametrize("cut", [b"", b'{"generation": 1, "com'])
def test_a_register_whose_first_writing_was_cut_short_is_an_empty_one(scene, cut):
    """Nothing was ever saved: there is no part that it could have named."""
    host = scene.host("a")
    worker = host.start(1)
    assert host.load(worker, 1) is None
    folder = scene.pulling.anchor(JOB).folder
    del scene.files.contents[folder / "HEAD"]
    scene.files.contents[folder / "HEAD.copy"] = cut
    scene.begin()
    assert host.load(worker, 1) is None
    host.save(worker, 10, 1)
    scene.run()
    assert ([commit.step for commit in scene.head.commits], scene.alarms) == ([10], [])


def test_one_that_is_thrown_away_while_it_is_carried_makes_room_for_the_next(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    scene.run(6)
    host.directory.disk.remove_tree(host.directory.place_of(10))
    host.save(worker, 20, 1, DATA)
    scene.run()
    assert [commit.step for commit in scene.head.commits] == [20]
    assert scene.alarms == []


def test_an_end_is_told_when_what_was_saved_is_carried_and_not_before(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    down = WorkerDown(worker_id=worker, code=EXIT_LEFT)
    assert host.keeping.holds(down)
    assert host.keeping.held() == {worker: JOB}
    scene.run()
    assert (host.ends, host.keeping.held()) == ([down], {})
    assert scene.head.newest.step == 10
    again = host.start(2)
    assert not host.keeping.holds(WorkerDown(worker_id=again, code=0)), "there is nothing to wait for"


def test_the_end_of_one_that_failed_is_told_at_once(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1)
    assert not host.keeping.holds(WorkerDown(worker_id=worker, code=1))
    scene.run()
    assert scene.head.newest.step == 10, "it is carried all the same"


@pytest.mark.parametrize("hurried", [False, True])
def test_a_controller_that_takes_nothing_is_not_waited_for_without_end_and_that_is_told(scene, hurried):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1)
    assert host.keeping.holds(WorkerDown(worker_id=worker, code=0))
    if hurried:
        host.keeping.carrying.hurry(worker)
    said = []
    while not host.ends:
        scene.now_s += 1.0
        assert scene.now_s < 100.0 + STALLED_S + 2 * TELL_S
        host.keeping.keep_time(scene.now_s)
        said += host.out
        host.out.clear()
    assert (scene.now_s <= 100.0 + HURRY_S) == hurried
    assert [type(each) for each in said].count(Uncarried) == 1
    assert sum(isinstance(each, Preparing) for each in said) <= 1, "nothing moves, so nobody is told to wait"
    assert sum(isinstance(each, Offered) for each in said) >= (1 if hurried else STALLED_S / AGAIN_S - 1)


def test_little_is_under_way_at_a_time(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, random.Random("much").randbytes(3 * UNDER_WAY_BYTES))
    most = 0
    while scene.turn():
        waiting = [digest for _, each in scene.down if isinstance(each, Lacks) for digest in each.digests]
        parts = [each for each in host.out if isinstance(each, Part)]
        most = max(most, len(waiting) + len(parts))
    assert 4 <= most <= UNDER_WAY_BYTES / PART_BYTES + 1
    assert scene.head.newest.step == 10


def test_what_names_files_outside_of_its_folder_is_neither_kept_nor_put_anywhere(scene, tmp_path):
    scene.generation, pages = 1, {}

    class Pages:
        def add(self, data):
            pages[digest_of(data)] = data
            return digest_of(data)

    host = scene.host("a")
    for path in ("/etc/passwd", "~/.bashrc"):
        root = write_manifest(Pages(), [Entry(path=path, parts=(Pages().add(b"x"),), size_bytes=1)])
        scene.pulling.receive("a", Offered(worker_id=f"{JOB}.1.0", generation=1, root=root, size_bytes=1, step=5))
        while any(isinstance(message, Lacks) for _, message in scene.down):
            _, lacks = scene.down.popleft()
            for digest in lacks.digests:
                scene.pulling.take("a", Part(digest=digest, data=pages[digest]))
        (_, answer) = scene.down.popleft()
        assert isinstance(answer, Carried)
        assert "outside" in answer.why
        worker = host.start(1)
        host.keeping.bring(Wants(worker_id=worker, generation=1))
        host.keeping.hear(Newest(worker_id=worker, root=root, step=5))
        for digest in [root, *pages]:
            host.keeping.hear(Part(digest=digest, data=pages[digest]))
        assert "outside" in host.answers[-1].why
    assert scene.head.commits == ()
