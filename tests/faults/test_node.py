"""The shipped agent on a machine of the world, and the shipped engine that it comes to, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sublet.runtime.agent.agent import AgentFacts
from sublet.runtime.agent.devices import GpuReading
from sublet.runtime.engines.local import LocalEngine
from sublet.testing.rigs import Ears
from sublet.wire.messages import (
    EXIT_LEFT,
    EXIT_LOST,
    Dismiss,
    EndWorker,
    GpuSeen,
    Hello,
    Joined,
    Meet,
    Noticed,
    Ping,
    Ready,
    Regroup,
    StartWorker,
    WorkerDown,
    WorkerSeen,
    WorkerUp,
)
from sublet_lab.world import sockets
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess
from sublet_lab.world.machine import trip_wired
from sublet_lab.world.metadata import SERVICE
from sublet_lab.world.network import CONTROLLER, Network
from sublet_lab.world.node import Site, WorldNode
from sublet_lab.world.script import Habits, OnTerm
from sublet_lab.world.truth import JobTruth, Truth
from sublet_lab.world.worker import Meetings

ADDRESS = "tcp:127.0.0.1:7000"
SAVED = "/jobs/script/checkpoints"


class Scene:
    """One machine, one engine, no controller."""

    def __init__(self, seed=1, *, gauge=None, **facts):
        self.world = World(seed)
        self.network, self.truth, self.ears, self.log, self.over = Network(self.world), Truth(), Ears(), [], []
        meetings = Meetings(self.world, self.network, self.truth)
        self.site = Site(self.world, self.network, meetings, log=lambda _, text: self.log.append(text), gauge=gauge)
        self.truth.jobs |= {"job": JobTruth(steps=50, step_s=1.0), "script": JobTruth(steps=40, step_s=1.0, sdk=False)}
        self.open_engine()
        self.node = WorldNode(self.site, self.facts("n", **facts), lambda: self.over.append(self.world.age_s))

    def facts(self, node_id, **facts):
        known = {"boot_s": 3.0, "lease_s": 60.0, "notice_file": f"/run/{node_id}.notice", "token": "token"}
        return AgentFacts(node_id=node_id, address=ADDRESS, **{**known, **facts})

    def open_engine(self):
        self.process = LoopProcess(self.world, "controller", CONTROLLER, self.network.listen)
        self.engine = LocalEngine(ADDRESS, lease_s=30.0)
        self.engine.expect("n", "token")
        self.process.spawn(self.engine.open(self.ears.hear))

    def kill_engine(self):
        self.process.kill()
        self.network.process_gone(self.process.loop, silent=False)

    def run(self, seconds):
        with trip_wired():
            self.world.run(self.world.now_s + seconds)
        assert self.process.loop.failures == []

    def send(self, message):
        assert self.engine.send("n", message)

    def start(self, worker_id, *, job_id="job", **facts):
        known = {"argv": ("python", "train.py"), "log": f"/logs/{worker_id}.log"}
        self.send(StartWorker(worker_id=worker_id, job_id=job_id, **{**known, **facts}))

    def start_script(self, worker_id="s", habits=None, **facts):
        self.site.scripts.habits["script"] = habits or Habits()
        env = {"SUBLET_CHECKPOINT_DIR": SAVED, **facts.pop("env", {})}
        self.start(worker_id, job_id="script", watch=True, reads=True, env=env, **facts)


@pytest.fixture
def scene():
    return Scene()


def test_an_agent_comes_after_its_boot_starts_a_session_and_goes_when_it_is_dismissed(scene):
    scene.run(2.9)
    assert scene.ears.all(Hello) == []
    scene.run(1.0)
    assert [hello.host for hello in scene.ears.all(Hello)] == ["n"]
    scene.start("w")
    scene.run(10.0)
    assert [up.pid for up in scene.ears.all(WorkerUp)] == list(scene.node.processes.running)
    assert scene.ears.all(Ready)
    scene.send(Regroup(worker_id="w", generation=1, rank=0, world=1, batch=1))
    scene.run(5.0)
    assert scene.ears.all(Joined)
    assert scene.over == []
    scene.send(Dismiss())
    scene.run(5.0)
    assert [down.code for down in scene.ears.all(WorkerDown)] == [-9]
    assert len(scene.over) == 1
    assert not scene.node.ended_for_lease


def test_nobody_who_renews_it_ends_a_node_with_its_workers(scene):
    scene.run(5.0)
    scene.start("w")
    scene.run(5.0)
    scene.kill_engine()
    scene.run(19.0)
    assert scene.node.workers
    scene.run(20.0)
    assert scene.node.ended_for_lease
    assert scene.node.workers == []
    assert len(scene.over) == 1
    assert any("no word from the controller" in text for text in scene.log)


def test_a_worker_that_ended_while_nobody_listened_is_told_to_who_comes(scene):
    scene.run(5.0)
    scene.start("w")
    scene.run(5.0)
    scene.kill_engine()
    scene.run(1.0)
    scene.node.workers[0].exit(3)
    scene.run(1.0)
    scene.ears.heard.clear()
    scene.open_engine()
    scene.run(6.0)
    assert [type(message) for _, message in scene.ears.heard] == [Hello, WorkerDown]
    assert scene.ears.all(WorkerDown)[0].code == 3


def test_a_line_that_swallows_everything_is_dialled_again_before_the_lease_ends(scene):
    scene.run(5.0)
    (connection,) = scene.network.connections
    connection.swallow()
    scene.run(60.0)
    assert len(scene.ears.all(Hello)) == 2
    assert scene.node.connected
    assert not scene.node.dead


def test_a_script_is_seen_to_compute_to_save_to_load_and_to_end(scene):
    scene.run(5.0)
    scene.start_script()
    scene.run(30.0)
    seen = scene.ears.all(WorkerSeen)
    assert [each.quiet_s for each in seen] == [0.0] * len(seen)
    assert seen[-1].saved_ago_s is not None
    assert {each.loaded for each in seen} == {""}
    scene.node.workers[0].exit(-9)
    scene.run(1.0)
    assert scene.ears.all(WorkerDown)[0].error.startswith("step 1\nstep 6\n")
    scene.start_script("t")
    scene.run(40.0)
    assert scene.truth.jobs["script"].redone > 0
    assert scene.ears.all(WorkerSeen, worker_id="t")[-1].loaded == "yes"
    assert scene.ears.all(WorkerDown, worker_id="t", code=0)
    assert scene.truth.jobs["script"].done
    assert scene.site.storage.holds == 0


def test_a_script_that_starts_over_and_one_that_hangs_are_seen_as_such(scene):
    scene.run(5.0)
    scene.site.storage.write(f"{SAVED}/model.pt", b"30")
    scene.start_script(habits=Habits(loads=False, prints_every_s=0.0, child_computes=True))
    scene.run(12.0)
    assert scene.ears.all(WorkerSeen)[-1].loaded == "no"
    assert scene.ears.all(WorkerSeen)[-1].quiet_s == 0.0
    scene.node.workers[0].hung = True
    scene.run(20.0)
    assert scene.ears.all(WorkerSeen)[-1].quiet_s > 10.0
    scene.send(EndWorker(worker_id="s", grace_s=4.0))
    scene.run(3.9)
    assert scene.ears.all(WorkerDown) == []
    scene.run(0.5)
    assert [down.code for down in scene.ears.all(WorkerDown)] == [-9]


def test_a_script_that_saves_when_it_is_told_to_end_says_so_with_its_code(scene):
    scene.run(5.0)
    scene.start_script(habits=Habits(on_term=OnTerm.SAVES, saves_every_s=600.0))
    scene.run(12.0)
    scene.send(EndWorker(worker_id="s", grace_s=10.0))
    scene.run(3.0)
    assert [down.code for down in scene.ears.all(WorkerDown)] == [EXIT_LEFT]
    assert scene.ears.all(WorkerSeen)[-1].saved_ago_s is not None


def test_scripts_of_several_workers_meet_at_the_port_that_the_first_of_them_offers(scene):
    scene.run(5.0)
    scene.start_script("a", offers=True, env={"RANK": "0", "WORLD_SIZE": "2"})
    scene.run(8.0)
    assert scene.truth.jobs["script"].top == 0
    (up,) = scene.ears.all(WorkerUp)
    assert up.host == "n"
    place = {"MASTER_ADDR": up.host, "MASTER_PORT": str(up.port)}
    scene.start_script("b", env={"RANK": "1", "WORLD_SIZE": "2", **place})
    scene.run(60.0)
    assert {each.met for each in scene.ears.all(WorkerSeen, worker_id="b")} == {True}
    assert [down.code for down in scene.ears.all(WorkerDown)] == [0, 0]


def test_what_cannot_be_started_is_told_and_what_a_script_babbles_is_not_passed_on(scene):
    scene.run(5.0)
    scene.node.processes.refuses = 1
    scene.start_script("none")
    scene.run(1.0)
    assert [(down.worker_id, down.code) for down in scene.ears.all(WorkerDown)] == [("none", EXIT_LOST)]
    scene.start_script(habits=Habits(babbles=True))
    scene.run(10.0)
    assert scene.ears.all(Ready) == []
    assert sum("refused from s" in text for text in scene.log) == 3


def test_a_worker_that_does_not_read_loses_orders_and_holds_nobody_up(scene):
    scene.run(5.0)
    scene.start("deaf")
    scene.run(5.0)
    scene.node.workers[0].hung = True
    for number in range(3000):
        scene.send(Meet(worker_id="deaf", generation=number, host="h" * 1000, port=1))
        if number % 100 == 0:
            scene.run(0.1)
    scene.run(1.0)
    assert any("does not read its line" in text for text in scene.log)
    scene.start("w")
    scene.run(10.0)
    assert scene.ears.all(Ready, worker_id="w")


def test_a_machine_that_learns_of_its_end_by_itself_tells_its_workers_and_its_controller():
    scene = Scene(metadata_url=SERVICE)
    scene.run(10.0)
    scene.node.service.interrupt(90.0)
    scene.run(10.0)
    (notice,) = scene.ears.all(Noticed)
    assert notice.kind == "interruption"
    assert 80.0 < notice.in_s <= 90.0
    written = json.loads(scene.node.files.read(Path("/run/n.notice")))
    assert written["node"] == "n"


def test_a_notice_that_was_said_to_a_controller_that_is_gone_is_said_to_the_next_one():
    """It may have read it, and written nothing down."""
    scene = Scene(metadata_url=SERVICE)
    scene.run(5.0)
    scene.node.service.interrupt(120.0)
    scene.run(8.0)
    assert len(scene.ears.all(Noticed)) == 1
    scene.kill_engine()
    scene.ears.heard.clear()
    scene.open_engine()
    scene.run(6.0)
    assert [type(message) for _, message in scene.ears.heard if not isinstance(message, Ping)] == [Hello, Noticed]


def test_an_agent_that_is_killed_takes_its_workers_with_it_and_its_machine_ends_with_the_lease(scene):
    scene.run(5.0)
    scene.start("w")
    scene.run(5.0)
    scene.node.kill_agent()
    scene.run(59.0)
    assert scene.node.workers == []
    assert scene.over == []
    assert not scene.node.connected
    scene.run(2.0)
    assert len(scene.over) == 1


def test_a_file_server_that_is_away_costs_no_agent_its_life(scene):
    """Found by seeds: the agent asked for the times of a file that it held, and ended of ESTALE with its workers."""
    scene.run(5.0)
    scene.site.storage.write(f"{SAVED}/model.pt", b"30")
    scene.start_script(habits=Habits(loads=False, saves_every_s=600.0))
    scene.run(8.0)
    scene.site.storage.gone = True
    scene.run(10.0)
    assert scene.truth.complaints == []
    assert scene.ears.all(WorkerSeen)[-1].loaded == "no"
    scene.site.storage.come_back()
    scene.site.storage.read(f"{SAVED}/model.pt")
    scene.run(6.0)
    assert scene.ears.all(WorkerSeen)[-1].loaded == "yes"
    assert scene.site.storage.holds == 0


def test_a_line_that_breaks_in_the_middle_of_a_message_begins_anew_with_a_greeting(scene, monkeypatch, caplog):
    scene.run(5.0)
    monkeypatch.setattr(sockets, "SHORT", 1.0)
    monkeypatch.setattr(sockets, "FULL_S", 1e6)
    scene.start("w")
    scene.run(0.1)
    assert scene.ears.all(WorkerUp) == []
    monkeypatch.setattr(sockets, "SHORT", 0.0)
    scene.network.connections[0].reset()
    scene.run(5.0)
    assert len(scene.ears.all(Hello)) == 2
    assert [up.worker_id for up in scene.ears.all(WorkerUp)] == ["w"]
    assert "stranger" not in caplog.text


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
@pytest.mark.parametrize("before", [True, False], ids=["before it starts", "while it runs"])
def test_what_a_script_saves_is_seen_whatever_the_clock_of_its_machine_says(scene, jump_s, before):
    """Files have the times of the server that keeps them."""
    scene.run(5.0)
    scene.site.storage.write(f"{SAVED}/model.pt", b"1")
    for now in (before, not before):
        if now:
            scene.site.clocks["n"].jump_s += jump_s
        else:
            scene.start_script(habits=Habits(saves_every_s=8.0))
            scene.run(6.0)
            assert scene.ears.all(WorkerSeen)[-1].saved_ago_s is None
    scene.run(24.0)
    seen = [each.saved_ago_s for each in scene.ears.all(WorkerSeen)]
    assert seen[-1] is not None
    assert all(ago_s <= 10.0 for ago_s in seen if ago_s is not None)


# ---------------------------------------------------------------------- GPUs


def test_an_agent_tells_of_the_gpus_of_each_worker_for_as_long_as_they_tell_something():
    told = {"0": GpuReading(busy=0.5, memory_bytes=3, memory_of_bytes=9)}
    told["1"] = GpuReading(busy=0.7, memory_bytes=5, memory_of_bytes=9)
    asked = []

    def gauge(names):
        asked.append(list(names))
        return told

    scene = Scene(gpus=("0", "1"), gauge=gauge)
    scene.run(5.0)
    scene.start("one")
    scene.start("two")
    scene.start("both", gpus=2)
    scene.run(6.0)
    assert asked == [["0", "1"]]
    assert {each.worker_id: (each.gpus, each.memory_bytes) for each in scene.ears.all(GpuSeen)} == {
        "one": (1, 3),
        "two": (1, 5),
        "both": (2, 8),
    }
    assert scene.ears.all(GpuSeen, worker_id="both")[0].busy == pytest.approx(0.6)
    told.clear()
    scene.run(20.0)
    assert len(asked) == 2
    assert len(scene.ears.all(GpuSeen)) == 3


def test_of_gpus_that_tell_nothing_nobody_is_told():
    scene = Scene(gpus=("0",), gauge=lambda _: {})
    scene.run(5.0)
    scene.start("one")
    scene.run(20.0)
    assert scene.ears.all(WorkerUp)
    assert scene.ears.all(GpuSeen) == []
