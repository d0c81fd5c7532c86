"""One node, for real, before a fleet: rented, reached, given work, and given back, with a budget of its own.

A controller of its own does it, in a folder of its own, with the provider and the files that the user has set up. So
what can be wrong with a first job is met here: rights, images, ports, Python, packages, GPUs, and the bill.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from sublet.errors import SubletError
from sublet.machine.rng import RNG
from sublet.machine.wall import WALL
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.assemble import controller_from
from sublet.runtime.controller_api.views import NodeStatus, NodeView
from sublet.runtime.jobs.spec import JobSpec, Retries
from sublet.runtime.settings import Settings

LOOK_S = 0.2
FILES = ("aws.toml", "hosts.toml", "ray.toml", "ssh.json")  # what users, and a look at machines, have said of providers
SCRIPT = """\
import torch
from sublet import train
from sublet.runtime.file_sync.contained import Engine

device = "cuda" if torch.cuda.is_available() else "cpu"
name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
engine, why = Engine.found()
print(f"torch {torch.__version__}, {name}; containers: {engine.name if engine else why}", flush=True)
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(160, 8), torch.ones(160, 1))
with train.session(model, optimizer, data, global_batch=8, epochs=1, device=device) as s:
    for _ in s.epochs():
        for features, wanted in s:
            s.step(torch.nn.functional.mse_loss(model(features), wanted))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that had to work, and how long it took; `ok` None = not come to."""

    name: str
    ok: bool | None
    text: str
    took_s: float = 0.0


async def try_a_node(settings: Settings, *, purse_usd: float, most_s: float) -> AsyncIterator[Check]:
    """The steps, as they happen. Nothing is rented any more when this ends, or the last step says what is."""
    folder = _prepare(Path(settings.state_dir))
    own = replace(
        settings,
        state_dir=str(folder),
        purse_usd=purse_usd,
        burn_usd_per_h=None,
        average_usd_per_h=None,
        strikes=(),
        port=0,
    )
    began_s = WALL.monotonic()
    try:
        api = controller_from(own)
        running = asyncio.create_task(api.run())
        starting = asyncio.create_task(api.started())
        await asyncio.wait([running, starting], return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if running.done():
            await running
    except SubletError as error:
        yield Check(name="start", ok=False, text=str(error))
        shutil.rmtree(folder, ignore_errors=True)
        return
    yield Check(name="start", ok=True, text=f"provider {own.provider}", took_s=WALL.monotonic() - began_s)
    left: list[NodeView] = []
    try:
        async for step in _train(api, running, folder, began_s + most_s):
            yield step
    finally:
        ends_s = WALL.monotonic()
        if not running.done():
            await api.shutdown(end_jobs=True)
        await asyncio.gather(running, return_exceptions=True)
        left = [node for node in await api.nodes() if node["phase"] != NodeStatus.GONE]
    cost = await api.cost()
    if left:
        text = f"{', '.join(node['id'] for node in left)} may still be rented: SUBLET_STATE={folder} sublet gc"
        yield Check(name="given back", ok=False, text=text)
        return
    took_s = WALL.monotonic() - ends_s
    yield Check(name="given back", ok=True, text=f"USD {cost['usd_total']:.4f} in all", took_s=took_s)
    shutil.rmtree(folder, ignore_errors=True)


def _prepare(home: Path) -> Path:
    """A folder within the user's own, with what the provider is told by files, and the script."""
    folder = home / f"check-{RNG.token(4)}"
    folder.mkdir(parents=True, mode=0o700)
    for name in FILES:
        if (home / name).is_file():
            shutil.copy(home / name, folder / name)
    (folder / "work").mkdir()
    (folder / "work" / "check.py").write_text(SCRIPT, encoding="utf-8")
    return folder


async def _train(api: ControllerApi, running: asyncio.Task[None], folder: Path, until_s: float) -> AsyncIterator[Check]:
    """A node, an agent, a first step, an end: each is told when it is there, or why it is not."""
    spec = JobSpec(
        name="check",
        argv=("python", "check.py"),
        cwd=str(folder / "work"),
        retries=Retries(preemption=1, infra=1, user=0),
    )
    at_s = WALL.monotonic()
    try:
        job = api.record((await api.submit(spec))["job_id"])
    except SubletError as error:
        yield Check(name="job", ok=False, text=str(error))
        return
    waiting = ["node rented", "agent there", "first step", "trained"]
    while waiting and not running.done() and WALL.monotonic() < until_s:
        await asyncio.sleep(LOOK_S)
        nodes = [node for node in await api.nodes() if node["phase"] != NodeStatus.GONE]
        ready = [node for node in nodes if node["phase"] != NodeStatus.RENTING]
        reached = {
            "node rented": bool(nodes or job.outcome) or job.group.step > 0,  # it may be gone again
            "agent there": bool(ready or job.outcome) or job.group.step > 0,
            "first step": job.group.step > 0,
            "trained": job.outcome == "finished",
        }
        while waiting and reached[waiting[0]]:
            name, now_s = waiting.pop(0), WALL.monotonic()
            text = _said(name, nodes, folder, job.group.step)
            yield Check(name=name, ok=True, text=text, took_s=now_s - at_s)
            at_s = now_s
        if waiting and job.outcome:
            break
    view = await api.job(job.id)
    if waiting:
        why = view["error"] or view["reason"] or "it took too long"
        yield Check(name=waiting[0], ok=False, text=f"{why}{_last_line(folder)}", took_s=WALL.monotonic() - at_s)
        for name in waiting[1:]:
            yield Check(name=name, ok=None, text="not come to")


def _said(name: str, nodes: list[NodeView], folder: Path, step: int) -> str:
    match name:
        case "node rented" if nodes:
            return f"{nodes[0]['offer_id']} at USD {nodes[0]['usd_per_h']:.4f}/h"
        case "first step":
            return _printed(folder).partition("\n")[0]
        case "trained":
            return f"{step} steps"
        case _:
            return ""


def _printed(folder: Path) -> str:
    logs = sorted((folder / "jobs").glob("*/logs/*.log"))
    return logs[0].read_text(encoding="utf-8", errors="replace").strip() if logs else ""


def _last_line(folder: Path) -> str:
    printed = _printed(folder)
    return f"; it printed: {printed.splitlines()[-1][:200]}" if printed else ""
