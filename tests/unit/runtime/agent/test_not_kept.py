"""Checkpoints that the controller cannot keep, for a moment or for good: they are told of, and not given up early."""

from __future__ import annotations

import errno
import random

import pytest

from sublet.runtime.agent.keeping import AGAIN_S, STALLED_S, TELL_S
from sublet.runtime.controller.files import checkpoints as pulling
from sublet.runtime.file_sync.content import PART_BYTES
from sublet.wire.messages import WorkerDown
from tests.rigs.carried import JOB, Scene

DATA = random.Random("weights").randbytes(3 * PART_BYTES + 1000)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def steps(scene):
    return [commit.step for commit in scene.head.commits]


@pytest.mark.parametrize("turns", [0, 5, 8])
def test_what_found_the_disk_full_is_told_offered_again_and_its_worker_counts_as_there_until_then(scene, turns):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    scene.run(turns)
    scene.files.full = True
    scene.run()
    assert steps(scene) == []
    assert "no space left" in scene.alarms[0]
    down = WorkerDown(worker_id=worker, code=0)
    assert host.keeping.holds(down)
    scene.wait(AGAIN_S)
    assert host.ends == []
    scene.files.full = False
    scene.wait(AGAIN_S)
    assert (steps(scene), host.ends) == ([10], [down])
    scene.lose("a")
    other = scene.host("b")
    assert other.load(other.start(2), 2) == 10


def test_a_disk_that_stays_full_is_not_waited_for_without_end(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    scene.files.full = True
    assert host.keeping.holds(WorkerDown(worker_id=worker, code=0))
    began_s = scene.now_s
    while not host.ends:
        scene.wait(TELL_S)
        assert scene.now_s - began_s <= STALLED_S + 2 * TELL_S, "parts that are sent in vain are no progress"
    assert "stays on a, and is lost with it" in " ".join(scene.alarms)


def test_what_a_disk_would_not_have_for_good_is_asked_for_again_and_nothing_torn_counts(scene):
    host = scene.host("a")
    worker = host.start(1)
    host.save(worker, 10, 1, DATA)
    settle, tries = scene.files.settle, []

    def settle_some(folder, drafts):
        tries.append(len(drafts))
        if len(tries) > 1:
            return settle(folder, drafts)
        settle(folder, dict(list(drafts.items())[:2]))
        raise OSError(errno.EIO, "input/output error")

    scene.files.settle = settle_some
    scene.run()
    assert (steps(scene), len(scene.alarms)) == ([], 1)
    scene.wait(AGAIN_S)
    assert steps(scene) == [10]
    assert tries == [tries[0]] * 2, "all came again"
    scene.lose("a")
    other = scene.host("b")
    assert other.load(other.start(2), 2) == 10


def test_a_part_that_found_no_room_is_not_missed_when_others_are_settled(scene):
    content = scene.pulling.anchor("job-1").content
    scene.files.full = True
    with pytest.raises(OSError, match="no space"):
        content.add(b"one")
    scene.files.full = False
    two = content.add(b"two")
    content.settle()
    assert content.data(two) == b"two"


def test_one_that_is_too_large_is_told_of(scene, monkeypatch):
    monkeypatch.setattr(pulling, "MOST_BYTES", 10)
    host = scene.host("a")
    host.save(host.start(1), 10, 1, DATA)
    scene.run()
    (alarm,) = scene.alarms
    assert "job-1.1.0 saved stays on a, and is lost with it: it has 0 GiB, and at most 0 GiB are carried" in alarm


def test_one_that_was_kept_is_not_said_to_be_lost_because_an_earlier_one_has_rotted(scene):
    host = scene.host("a")
    worker = host.start(1)
    for step in (10, 20):
        host.save(worker, step, 1, DATA)
        scene.run()
    scene.files.contents[scene.pulling.anchor(JOB).content.folder / scene.head.commits[0].root] = b"rot"
    host.save(worker, 30, 1, DATA)
    scene.run()
    assert steps(scene) == [20, 30]
    assert [saved.step for saved in scene.saved] == [10, 20, 30]
    assert scene.alarms == ["its checkpoint 10 at the controller is damaged, and was removed"]
    assert host.keeping.holds(WorkerDown(worker_id=worker, code=0)) is False  # nothing is left to carry
