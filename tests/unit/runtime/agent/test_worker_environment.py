"""What a worker finds in its environment: ranks, the names of its runs, and where a user's own value wins."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace

import pytest

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.group.build import build_group
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import JobSpec
from sublet.testing.rigs import Ears, LocalRig, until
from sublet.wire.messages import Dismiss, Hello, StartWorker, WorkerDown
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

DISTRIBUTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SHOW = "import json, os\nprint(json.dumps(dict(os.environ)))\n"


def a_spec(**facts):
    return JobSpec(**{"name": "j", "argv": ("x",), "cwd": "", "max_workers": 2, **facts})


def starts(placement, **facts):
    """The orders to start that a group gives for a placement."""
    group = build_group("j-1", a_spec(**facts), log_of=str, env=dict)
    group.move(1, placement, 0, 0.0)
    return [message for _, message in group.outbox if isinstance(message, StartWorker)]


async def order_of(folder, **facts):
    """The order to start that the controller of a new state directory gives for its first job."""
    cloud = MemoryCloud([one_gpu_offer("spot")], Clock(speedup=60.0))
    seen, start = [], cloud._start
    cloud._start = lambda node, message: seen.append(message) or start(node, message)
    policy = plugins.load("sublet.policies", "max-speedup")()
    with api_over(cloud, folder, policy, limits={"spot": Limit(max_nodes=1)}) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        await api.submit(a_spec(max_workers=1, **facts))
        await until(lambda: seen)
        await api.shutdown(end_jobs=True)
        await cloud.close()
        await asyncio.gather(running, return_exceptions=True)
    return seen[0]


def found(order):
    """As the worker sees it, on a node that says nothing."""
    return {**getattr(order, "defaults", {}), **order.env}


def test_a_script_without_the_sdk_that_is_for_one_worker_is_not_told_that_it_is_distributed():
    (start,) = starts((("a", 1),), sdk=False, max_workers=1)
    assert not set(DISTRIBUTED) & set(start.env)
    assert not start.offers


def test_a_script_that_may_have_several_workers_finds_the_variables_of_torchrun_where_it_has_one():
    (start,) = starts((("a", 1),), sdk=False, max_workers=2)
    assert [start.env[name] for name in DISTRIBUTED[:3]] == ["0", "1", "0"]
    assert start.offers, "the agent finds a port for MASTER_ADDR and MASTER_PORT"


def test_a_script_that_was_submitted_with_torchrun_finds_its_variables_at_any_width(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n", encoding="utf-8")
    spec = job_from_command(["torchrun", "--nproc-per-node", "1", "train.py"], cwd=str(tmp_path))
    group = build_group("j-1", spec, log_of=str, env=dict)
    group.move(1, (("a", 1),), 0, 0.0)
    ((_, start),) = group.outbox
    assert set(DISTRIBUTED[:3]) <= set(start.env)
    assert start.offers, "the agent finds a port for MASTER_ADDR and MASTER_PORT"


def test_a_worker_of_the_sdk_finds_its_rank_and_the_width_as_at_its_start():
    env = [start.env for start in starts((("a", 1), ("b", 1)))]
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in env] == [("0", "2"), ("1", "2")]


def test_runs_at_a_tracker_are_told_apart_across_state_directories(tmp_path):
    async def scene():
        first, second = [await order_of(tmp_path / name) for name in ("one", "two")]
        assert first.job_id == second.job_id  # both are the first job of their controller
        assert found(first)["WANDB_RUN_ID"] != found(second)["WANDB_RUN_ID"]
        assert found(first)["WANDB_RESUME"] == "allow"

    asyncio.run(scene())


def test_no_run_is_named_that_mlflow_does_not_know(tmp_path):
    assert "MLFLOW_RUN_ID" not in found(asyncio.run(order_of(tmp_path)))


@pytest.mark.parametrize("how", ["env", "secrets"])
def test_the_run_that_a_user_names_in_the_job_is_kept(tmp_path, how):
    order = asyncio.run(order_of(tmp_path, **{how: {"WANDB_RUN_ID": "mine", "MLFLOW_RUN_ID": "known"}}))
    assert (found(order)["WANDB_RUN_ID"], found(order)["MLFLOW_RUN_ID"]) == ("mine", "known")


def test_the_run_that_a_user_names_on_the_node_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "the node's")
    monkeypatch.delenv("WANDB_RESUME", raising=False)
    rig = LocalRig()

    async def scene():
        order = await order_of(tmp_path)
        script, log = rig.script("show.py", SHOW), str(rig.folder / "w.log")
        engine, ears = rig.engine(), Ears()
        await engine.open(ears.hear)
        engine.expect("n", "token")
        rig.agent("n", "token")
        await ears.next(Hello)
        engine.send("n", replace(order, worker_id="w", argv=(sys.executable, script), log=log))
        await ears.next(WorkerDown, code=0)
        seen = json.loads(rig.printed("w"))
        assert (seen["WANDB_RUN_ID"], seen["WANDB_RESUME"]) == ("the node's", "allow")
        engine.send("n", Dismiss())
        await until(lambda: not rig.left())
        await engine.close()

    asyncio.run(scene())
    assert rig.clean_up() == []


def test_a_run_in_the_shell_of_the_controller_is_not_that_of_every_job(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "of my shell")
    monkeypatch.setenv("MLFLOW_RUN_ID", "of my shell")
    monkeypatch.setenv("DATA", "for all")
    rig = LocalRig()

    async def scene():
        orders = [await order_of(tmp_path / name) for name in ("one", "two")]
        engine, ears, provider = rig.engine(), Ears(), rig.provider()
        await engine.open(ears.hear)
        engine.expect("n", "token")
        await provider.open(ears.tell)
        await provider.rent("n", "spot", "token")
        await ears.next(Hello)
        for number, order in enumerate(orders):
            log, name = str(rig.folder / f"{number}.log"), f"w{number}"
            engine.send("n", replace(order, worker_id=name, argv=(sys.executable, rig.script("s.py", SHOW)), log=log))
            await ears.next(WorkerDown, worker_id=name, code=0)
        seen = [json.loads(rig.printed(str(number))) for number in range(len(orders))]
        assert [each["WANDB_RUN_ID"] for each in seen] == [order.defaults["WANDB_RUN_ID"] for order in orders]
        assert not any("MLFLOW_RUN_ID" in each for each in seen)
        assert {each["DATA"] for each in seen} == {"for all"}
        await provider.release("n")
        await provider.close()
        await engine.close()

    asyncio.run(scene())
    assert rig.clean_up() == []
