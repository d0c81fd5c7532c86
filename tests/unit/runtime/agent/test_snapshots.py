"""What a script without the SDK saves in its folder: taken when it is still, carried, and found by its next start."""

from __future__ import annotations

import pytest

from sublet.runtime.agent.keeping import AGAIN_S, MOST_TRIES
from sublet.runtime.agent.snapshots import AT_ONCE, LOOK_S, RESTLESS_S
from sublet.runtime.controller.files.checkpoints import STALE
from sublet.wire.files import Part, Wants
from sublet.wire.messages import WorkerDown
from tests.rigs.carried import JOB, Scene

SAVED = {"last.pt": b"step 20", "log/events": b"loss"}


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def rest(scene, looks=3):
    for _ in range(looks):
        scene.wait(1.1 * LOOK_S)


def save(host, files=SAVED):
    for name, data in files.items():
        host.write(name, data)


def test_what_a_script_saved_outlives_its_host_and_its_next_start_finds_it_as_it_was(scene):
    first, second = scene.host("a"), scene.host("b")
    first.start_script(1)
    assert first.order.env["SUBLET_RESUME"] == "0"
    second.start_script(1, rank=1)
    save(second, {"left": b"by rank 1, which nobody carries"})
    save(first)
    rest(scene)
    (saved,) = scene.saved
    assert (saved.step, saved.tier) == (-1, "anchor")
    scene.lose("a")
    second.start_script(2)
    assert second.found() == SAVED
    assert second.order.env["SUBLET_RESUME"] == "1"
    assert second.order.env["SUBLET_CHECKPOINT_DIR"] == str(second.place)


def test_it_is_taken_when_it_is_the_same_at_two_looks_and_once(scene):
    host = scene.host("a")
    host.start_script(1)
    for number in range(4):
        host.write("last.pt", bytes(number))
        scene.wait(1.1 * LOOK_S)
        assert scene.saved == [], "it has just changed"
    rest(scene, looks=5)
    assert len(scene.saved) == 1
    (entry,) = scene.pulling.anchor(JOB).entries(scene.head.newest)
    assert (entry.path, entry.size_bytes) == ("last.pt", 3)


def test_a_folder_that_never_rests_is_taken_after_a_while(scene):
    host = scene.host("a")
    host.start_script(1)
    host.write("last.pt", b"weights")
    while scene.now_s < 100.0 + RESTLESS_S + 3 * LOOK_S:
        host.write("log", str(scene.now_s).encode())
        scene.wait(1.1 * LOOK_S)
        assert not scene.saved or scene.now_s > 100.0 + RESTLESS_S
    assert len(scene.saved) == 1


def test_a_file_that_changes_while_it_is_read_spoils_the_snapshot_and_that_is_told(scene):
    host = scene.host("a")
    host.start_script(1)
    host.write("last.pt", b"a" * (3 * AT_ONCE))
    tries = 0
    while not scene.alarms:
        scene.now_s += 1.1 * LOOK_S
        assert scene.now_s < 100.0 + 100 * LOOK_S
        scene.turn()
        if any(job.snapshot for job in host.keeping.carrying._jobs.values()):
            tries += 1
            host.write("last.pt", bytes([tries]) * (3 * AT_ONCE))
        scene.run()
    assert tries == MOST_TRIES + 1
    assert "changes whenever it is read" in scene.alarms[0]
    assert scene.saved == []
    rest(scene)
    assert scene.saved, "once it rests it is carried"


def test_a_host_that_was_away_replaces_nothing(scene):
    away, other = scene.host("a"), scene.host("b")
    away.start_script(1)
    save(away)
    rest(scene)
    other.start_script(2)
    assert other.found() == SAVED
    save(away, {"last.pt": b"step 90"})
    rest(scene)
    assert any(STALE in line for line in away.logged)
    assert len(scene.saved) == 1
    save(other, {"last.pt": b"step 40"})
    rest(scene)
    away.start_script(3)
    assert away.found() == {**SAVED, "last.pt": b"step 40"}


def test_a_host_that_wrote_last_keeps_what_it_has_and_is_sent_nothing(scene):
    host = scene.host("a")
    worker = host.start_script(1)
    save(host)
    rest(scene)
    scene.parts_sent()
    host.write("last.pt", b"step 60")  # it ends before anybody could carry it
    host.keeping.carrying.held.clear()
    host.keeping.holds(WorkerDown(worker_id=worker, code=1))
    host.out.clear()
    host.start_script(2)
    assert host.found()["last.pt"] == b"step 60"
    assert scene.parts_sent(Part) == []
    rest(scene)
    scene.wait(AGAIN_S)
    assert len(scene.saved) == 2, "under the generation that goes on with it"
    assert scene.head.newest.generation == 2


def test_nothing_is_put_under_a_script_that_runs(scene):
    """Ranks of one node share a folder, and rank 0 starts first."""
    host, gone = scene.host("a"), scene.host("z")
    gone.start_script(1)
    save(gone)
    rest(scene)
    scene.lose("z")
    host.start_script(2)
    save(host, {"last.pt": b"step 80"})
    host.start_script(2, rank=1)
    assert host.found()["last.pt"] == b"step 80"
    scene.generation = 3  # and all at once, as for commands per node
    for rank in (1, 0):
        host.keeping.adopt(host.order)
        host.keeping.restoring.want(Wants(worker_id=f"{JOB}.3.{rank}", generation=3), str(host.place), own=lambda: -1)
    scene.run()
    assert host.found() == SAVED
    assert not host.place.with_name(f"{JOB}.brought").exists()


@pytest.mark.parametrize("code", [0, 1, -15])
def test_the_end_of_rank_0_is_told_when_its_last_save_is_carried(scene, code):
    host = scene.host("a")
    worker = host.start_script(1)
    other = host.start_script(1, rank=1)
    save(host)
    down = WorkerDown(worker_id=worker, code=code)
    assert host.keeping.holds(down), "whether or not it rests: nobody writes any more"
    assert not host.keeping.holds(WorkerDown(worker_id=other, code=code)), "rank 1 saves nothing that is carried"
    scene.run()
    assert host.ends == [down]
    assert len(scene.saved) == 1


def test_a_node_that_will_be_taken_waits_for_no_rest(scene):
    host = scene.host("a")
    host.start_script(1)
    save(host)
    host.keeping.hasten()
    scene.run()
    assert len(scene.saved) == 1
