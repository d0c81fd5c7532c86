"""A directory in `checkpoint.uri`: where a node does not see the controller's, what it saves there is carried.

The code at both ends is what ships. A node on its own has a disk on which nothing of the controller's is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sublet.machine.files import FILES
from sublet.machine.rng import RNG
from sublet.runtime.agent import disk
from sublet.runtime.agent.preparing import Preparations
from sublet.runtime.agent.reading import holds_files
from sublet.runtime.controller.files.logs import JobLogs
from sublet.runtime.controller.files.sync import FileSync
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire.files import ANCHOR, DISK, Saved
from sublet.wire.messages import StartWorker
from sublet_lab.world.machine import MemoryFiles
from sublet_lab.world.storage import Storage
from tests.rigs.carried import JOB, Scene


class Fleet(Scene):
    """A job that names a directory, its controller, and nodes that see it or do not."""

    def __init__(self, folder):
        self.place = folder / "data" / "ck"
        self.place.mkdir(parents=True)
        self.spec = JobSpec(name="job", argv=("train",), cwd="/", checkpoint_dir=str(self.place))
        (folder / "state").mkdir()
        super().__init__(folder)

    def begin(self):
        super().begin()
        state, engine = self.folder / "state", SimpleNamespace(send=lambda *said: self.down.append(said))
        facts = {"files": FILES, "rng": RNG, "engine": engine, "logs": JobLogs(state), "elsewhere": True}
        self.carrier = FileSync(state, **facts)
        self.carrier.pulling = self.pulling

    def start(self, name, generation, *, shares):
        """A worker on a node: its id, and the order as its process gets it."""
        host = self.hosts.get(name) or self.host(name)
        self.generation = max(self.generation, generation)
        worker_id, started = f"{JOB}.{generation}.0", []
        machine = SimpleNamespace(
            files=FILES if shares else MemoryFiles(),
            disk=disk.DISK if shares else Storage(lambda: self.now_s),
            wall=SimpleNamespace(monotonic=lambda: self.now_s),
            processes=None,
            warm=lambda: True,
            home=lambda *_: Path("/home/job"),
        )
        crew = SimpleNamespace(knows=lambda _: False, start=lambda order, *_: started.append(order))
        node = Preparations(host.folder, machine, crew, lambda _: None, host.keeping)
        env = {"SUBLET_CHECKPOINT_DIR": str(self.place)}
        order = StartWorker(worker_id=worker_id, job_id=JOB, argv=("train",), cwd="/", env=env)
        node.start(self.carrier.load(order, self.spec), {}, "host")
        (order,) = started
        return worker_id, order.env

    def judged(self, worker_id, step):
        """What the word of a worker is worth that says its checkpoint outlives the node."""
        said = Saved(worker_id=worker_id, step=step, done=1.0, seconds=1.0, blocked_s=0.0, size_bytes=5, tier=ANCHOR)
        heard = self.carrier.judge({JOB: SimpleNamespace(spec=self.spec)}, said)
        assert heard == replace(said, tier=heard.tier)
        return heard.tier

    def _up(self, name, message):
        self.carrier.receive(name, message, lambda *_: True)


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


def test_what_a_node_saves_in_a_directory_of_its_own_is_carried_and_found_when_the_node_is_gone(fleet):
    worker_id, env = fleet.start("alone", 1, shares=False)
    own = fleet.hosts["alone"].place
    assert (env["SUBLET_CHECKPOINT_DIR"], env["SUBLET_CHECKPOINT_TIER"]) == (str(own), DISK)
    assert fleet.hosts["alone"].load(worker_id, 1) is None
    fleet.hosts["alone"].save(worker_id, 7, 1)
    assert fleet.judged(worker_id, 7) == DISK, "its node would be given back with the only copy"
    fleet.wait(1.0)
    assert [(saved.step, saved.tier) for saved in fleet.saved] == [(7, ANCHOR)]
    fleet.lose("alone")
    worker_id, _ = fleet.start("next", 2, shares=False)
    assert fleet.hosts["next"].load(worker_id, 2) == 7
    (alarm,) = fleet.alarms
    assert alarm.startswith(f"checkpoint.uri = '{fleet.place}' is not shared by alone: checkpoints are carried here")
    assert alarm.endswith("leave it out, or name a bucket (s3://...)")


def test_a_node_that_sees_the_directory_saves_there_and_that_counts(fleet):
    worker_id, env = fleet.start("one", 1, shares=True)
    assert env == {"SUBLET_CHECKPOINT_DIR": str(fleet.place)}
    fleet.run()
    assert fleet.judged(worker_id, 7) == ANCHOR
    assert not fleet.carrier.carries(fleet.spec, JOB)
    assert fleet.alarms == []
    assert not holds_files(str(fleet.place)), "nothing there looks like something saved"


def test_a_job_that_was_carried_once_has_one_place_also_for_later_controllers(fleet):
    worker_id, _ = fleet.start("alone", 1, shares=False)
    fleet.hosts["alone"].load(worker_id, 1)
    fleet.hosts["alone"].save(worker_id, 7, 1)
    fleet.wait(1.0)
    fleet.begin()
    assert fleet.judged(worker_id, 8) == DISK
    worker_id, env = fleet.start("sees", 2, shares=True)
    assert env["SUBLET_CHECKPOINT_TIER"] == DISK
    assert fleet.hosts["sees"].load(worker_id, 2) == 7
    assert len(fleet.alarms) == 1


def test_the_word_of_one_that_is_apart_counts_for_nothing_before_anything_was_carried(fleet):
    worker_id, _ = fleet.start("alone", 1, shares=False)
    fleet.hosts["alone"].load(worker_id, 1)
    assert fleet.judged(worker_id, 3) == DISK
    fleet.begin()  # another controller, which reads who may commit
    assert fleet.judged(worker_id, 3) == DISK


def test_one_that_took_over_from_a_node_that_shares_is_not_believed_from_its_first_offer_on(fleet):
    """It has its state from others and asked for none."""
    fleet.start("sees", 1, shares=True)
    worker_id, _ = fleet.start("alone", 2, shares=False)
    fleet.hosts["alone"].save(worker_id, 7, 2)
    while not fleet.alarms:
        assert fleet.turn(), "nothing was offered"
    assert not fleet.head.generation
    assert not fleet.head.commits
    assert fleet.judged(worker_id, 7) == DISK


def test_where_the_controller_cannot_mark_the_directory_all_is_carried(fleet):
    fleet.place.rmdir()
    fleet.place.write_text("in the way")
    _, env = fleet.start("one", 1, shares=True)
    assert env["SUBLET_CHECKPOINT_TIER"] == DISK


def test_who_submits_a_directory_to_nodes_elsewhere_is_told_who_must_see_it(fleet):
    (note,) = asyncio.run(fleet.carrier.check(fleet.spec))
    assert note.startswith(f"checkpoint.uri = '{fleet.place}' is for a directory that the controller and all nodes see")
    for uri in ("", "s3://bucket/job"):
        assert asyncio.run(fleet.carrier.check(replace(fleet.spec, checkpoint_dir=uri))) == []
