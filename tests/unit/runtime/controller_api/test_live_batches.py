"""A job that measures itself, under the real controller: the plan chooses its batch, and `explain` says why."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from sublet.cli.print.submission import print_alternatives
from sublet.policies.boa.policy import Boa
from sublet.policies.elastic_batch.policy import ElasticBatch
from sublet.runtime.clock import Clock
from sublet.runtime.controller.jobs import reports
from sublet_lab.memory_cloud import MemoryCloud, Training
from tests.rigs.asgi import OFFERS, serving
from tests.rigs.story import a_spec

pytestmark = pytest.mark.usefixtures("virtual_time")
PATIENCE_S = 60.0
POLICIES = {  # those with a period of ten minutes look more often
    **{name: name for name in ("price", "pollux", "sia", "mip")},
    "boa": Boa(round_s=60.0),
    "elastic-batch": ElasticBatch(every_s=60.0),
}


async def until(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.1)


def a_cloud(**facts):
    cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
    cloud.jobs["j-1"] = Training(**{"steps": 100_000_000, "batches": (64, 32, 1024), "noise": 800.0, **facts})
    return cloud


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_every_policy_gives_a_job_that_measures_itself_the_batch_that_gains_most(tmp_path, policy):
    """At this noise twice the batch is worth nearly twice the progress, and a step hardly takes longer."""
    cloud = a_cloud()
    training = cloud.jobs["j-1"]

    async def live():
        async with serving(tmp_path, policy=policy, cloud=cloud) as server:
            await server.api.submit(a_spec(max_workers=2))
            await until(lambda: training.batch > 64)
            state = server.api._controller.kernel.jobs["j-1"]
            assert state.shape.batch == training.batch
            return training.batch, state.shape.gpus

    batch, workers = asyncio.run(live())
    goodput = {b: b / (0.025 + 0.001 * b / workers) / (800.0 + b) for b in (64, 91, 128, 181, 256, 362, 512)}
    assert goodput[batch] >= 0.93 * max(goodput.values())


def test_explain_says_why_this_batch_and_whence_its_speed_is_known(tmp_path, capsys):
    cloud = a_cloud()

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            await server.api.submit(a_spec(max_workers=2))
            await until(lambda: cloud.jobs["j-1"].batch > 64)
            await until(lambda: server.api.record("j-1").profile.batch > 64)
            await asyncio.sleep(5.0)
            return await server.api.explain("j-1")

    found = asyncio.run(live())
    (chosen,) = (row for row in found["alternatives"] if row["chosen"])
    assert chosen["batch"] == cloud.jobs["j-1"].batch
    assert chosen["known"] == "measured"
    assert "predicted" in {row["known"] for row in found["alternatives"]}
    (note,) = (note for note in found["notes"] if note.startswith("its batch"))
    assert f"its batch of {chosen['batch']} (of 32 to 1024) is the plan's: at a measured gradient noise of 800" in note
    print_alternatives(found["alternatives"])
    printed = capsys.readouterr().out
    assert str(chosen["batch"]) in printed
    assert "measured" in printed


def test_explain_says_of_the_next_run_what_is_known_from_an_earlier_one_until_it_has_measured_its_own(tmp_path, capsys):
    (tmp_path / "train.py").write_text("print('one')")
    script = {"argv": ("python", "train.py"), "cwd": str(tmp_path), "work": 6_000.0}
    cloud = a_cloud(steps=6_000)
    cloud.jobs["j-2"] = Training(steps=100_000_000, batches=(64, 32, 1024), noise=None)

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            await server.api.submit(a_spec(max_workers=1, **script))
            await until(lambda: list(tmp_path.glob("state/profiles/*.csv")))
            await server.api.submit(a_spec(max_workers=2, **script))
            job = server.api.record("j-2")
            await until(lambda: job.group.size)
            assert not job.profile.forms, "it has not measured anything yet"
            before = (await server.api.explain("j-2"))["alternatives"]
            await until(lambda: job.profile.forms)
            await asyncio.sleep(5.0)
            return before, (await server.api.explain("j-2"))["alternatives"]

    before, after = asyncio.run(live())
    assert {row["workers"]: row["known"] for row in before} == {1: "from an earlier run", 2: "predicted"}
    (chosen,) = (row for row in after if row["chosen"])
    assert chosen["known"] == "measured"
    print_alternatives(before)
    assert "from an earlier run" in capsys.readouterr().out


def test_what_curves_are_fitted_with_is_loaded_once_and_beside_the_loop(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(reports, "load_solver", lambda: loaded.append(threading.current_thread()))
    cloud = a_cloud()

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            await server.api.submit(a_spec(max_workers=2))
            await until(lambda: cloud.jobs["j-1"].batch > 64)
            return threading.current_thread()

    loop = asyncio.run(live())
    assert len(loaded) == 1
    assert loaded[0] is not loop


def test_a_job_without_a_range_of_batches_is_never_told_one(tmp_path):
    cloud = a_cloud(batches=(64, 64, 64))

    async def live():
        async with serving(tmp_path, cloud=cloud) as server:
            cloud.jobs["j-1"].batches = None
            await server.api.submit(a_spec(max_workers=2))
            await until(lambda: bool(server.api.record("j-1").rates))
            await asyncio.sleep(8.0)
            return server.api._controller.kernel.jobs["j-1"].shape

    assert asyncio.run(live()).batch is None
