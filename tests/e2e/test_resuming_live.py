"""Scripts as they are written for torchrun, on nodes of this machine that are lost: what the bill says of each."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.agent.reading import Reading
from sublet.runtime.clock import Clock
from sublet.runtime.controller.jobs.node_loss import Blame
from sublet.runtime.jobs.file import job_from_text
from sublet.testing.rigs import LocalRig
from sublet.testing.values import an_offer
from sublet_lab.memory_cloud import api_over

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 240.0
KILLS = 3

# It saves a snapshot in its directory after each epoch, and goes on from it.
TRAINER = """
import os, pickle, sys, time

SNAPSHOT = sys.argv[-1] if sys.argv[-1].endswith(".pt") else "snapshot.pt"


class Trainer:
    def __init__(self):
        self.epochs_run, self.weights = 0, [0.0] * 1000
        if os.path.exists(SNAPSHOT) and "resume" in sys.argv:
            with open(SNAPSHOT, "rb") as file:
                snapshot = pickle.load(file)
            self.weights, self.epochs_run = snapshot["MODEL_STATE"], snapshot["EPOCHS_RUN"]
            print(f"resuming from snapshot at epoch {self.epochs_run}", flush=True)

    def save(self, epoch):
        with open(SNAPSHOT, "wb") as file:
            pickle.dump({"MODEL_STATE": self.weights, "EPOCHS_RUN": epoch}, file)

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            time.sleep(0.2)
            if "save" in sys.argv:
                self.save(epoch + 1)
            print("epoch", epoch, flush=True)


Trainer().train(int(sys.argv[1]))
"""


@pytest.fixture
def rig(monkeypatch):
    monkeypatch.setattr(Blame, "judge_loss", lambda *_, **__: set())  # here a node that goes was taken by the cloud
    here = LocalRig()
    here.clock = Clock(speedup=600.0)
    yield here
    assert here.clean_up() == []


def lived(rig, words, scene):
    (rig.folder / "work").mkdir(exist_ok=True)
    (rig.folder / "work" / "probe").write_bytes(b"x")
    if Reading(str(rig.folder / "work")).told != "no":
        pytest.skip("this file system notes no reads")
    (rig.folder / "work" / "train.py").write_text(TRAINER, encoding="utf-8")
    text = f"workdir: .\nresources: {{accelerators: 'V100:1'}}\nrun: python train.py {words}\n"
    spec = job_from_text(text, source="train.yaml", base=rig.folder / "work")
    provider = rig.provider(offers=[an_offer("spot", gpus=1, gpu="V100", usd_per_h=3.6)])
    cloud = SimpleNamespace(provider=provider, engine=rig.engine(), clock=rig.clock)
    policy = plugins.load("sublet.policies", "max-speedup")()

    async def live():
        with api_over(cloud, rig.folder / "state", policy, limits={"spot": Limit(max_nodes=1)}) as api:
            running = asyncio.create_task(api.run())
            await api.started()
            await api.submit(spec)
            try:
                await scene(api)
            finally:
                await api.shutdown(end_jobs=True)
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live())


async def come_true(condition, what):
    for _ in range(int(PATIENCE_S / 0.1)):
        if found := await condition():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(what)


async def lose_its_node(rig, api):
    """Another takes its place."""
    (node_id,) = rig.left()
    rig.kill(node_id)

    async def another():
        return rig.left() not in ([], [node_id]) and (await api.job("train-1"))["phase"] == "running"

    await come_true(another, "it is not started again")


def printed(rig):
    logs = (rig.folder / "state" / "jobs" / "train-1" / "logs").glob("*.log")
    return "".join(path.read_text() for path in logs)


def test_a_script_that_resumes_from_its_own_directory_is_told_so_in_the_bill(rig):
    async def scene(api):
        await come_true(lambda: asyncio.sleep(0, api.record("train-1").wrote), "nobody sees what it writes")
        record = api.record("train-1")
        for kill in range(1, KILLS + 1):
            await lose_its_node(rig, api)
            resumed = f"resuming {kill} times"
            await come_true(lambda kill=kill: asyncio.sleep(0, printed(rig).count("resuming from") == kill), resumed)
            await come_true(lambda: asyncio.sleep(0, record.wrote and record.start_useful is None), "it saves nothing")
        bill, view = await api.cost("train-1"), await api.job("train-1")
        assert bill["usd_useful"] > 0
        assert bill["usd_useful"] > bill["usd_redone"]
        assert (record.starts_over, record.unsure) == (0, [])
        assert not any("started over" in warning or "unknown" in warning for warning in view["warnings"])

    lived(rig, "1000000 save resume", scene)


@pytest.mark.parametrize("saves", ["", " save resume {outside}/snapshot.pt"])
def test_of_a_script_that_saves_nothing_or_outside_of_its_directory_it_is_unknown_whether_it_resumed(rig, saves):
    outside = rig.folder / "outside"
    outside.mkdir()

    def looked(api):
        running = api._controller.groups.attempts._running.get("train-1")
        return running is not None and running.looked

    async def scene(api):
        for kill in range(KILLS):
            await come_true(lambda: asyncio.sleep(0, looked(api)), "nobody looks")
            resumed = bool(saves) and kill > 0
            await come_true(
                lambda r=resumed, k=kill: asyncio.sleep(0, not r or printed(rig).count("resuming from") >= k), ""
            )
            await lose_its_node(rig, api)
        record, bill = api.record("train-1"), await api.cost("train-1")
        assert (bill["usd_useful"], bill["usd_redone"], bill["usd_unknown"] > 0) == (0, 0, True)
        assert (record.starts_over, len(record.unsure)) == (0, KILLS)
        (warning,) = (await api.job("train-1"))["warnings"]
        assert "whether it resumed is unknown" in warning

    lived(rig, f"1000000{saves.format(outside=outside)}", scene)


def test_a_script_that_saves_in_a_folder_behind_a_link_resumes(rig):
    async def scene(api):
        await come_true(lambda: asyncio.sleep(0, api.record("train-1").wrote), "nobody sees what it writes")
        record = api.record("train-1")
        await lose_its_node(rig, api)
        await come_true(lambda: asyncio.sleep(0, record.wrote and record.start_useful is None), "it saves nothing")
        assert (record.starts_over, record.unsure) == (0, [])

    (rig.folder / "outside").mkdir()
    (rig.folder / "work").mkdir()
    (rig.folder / "work" / "ckpt").symlink_to(rig.folder / "outside")
    lived(rig, "1000000 save resume ckpt/snapshot.pt", scene)


def test_a_script_that_writes_and_is_not_seen_to_read_is_unknown(rig):
    async def scene(api):
        await come_true(lambda: asyncio.sleep(0, api.record("train-1").wrote), "nobody sees what it writes")
        record = api.record("train-1")
        for _ in range(KILLS):
            await come_true(lambda: asyncio.sleep(0, record.wrote), "nobody sees what it writes")
            await lose_its_node(rig, api)
        bill, view = await api.cost("train-1"), await api.job("train-1")
        assert (bill["usd_useful"], bill["usd_redone"], bill["usd_unknown"] > 0) == (0, 0, True)
        assert record.starts_over == 0
        assert not any("started over" in warning for warning in view["warnings"])
        assert any("unknown" in warning for warning in view["warnings"])

    lived(rig, "1000000 save", scene)
