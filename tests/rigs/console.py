"""A real controller over a cloud in memory, served on loopback from a thread, and a browser that looks at its page."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sublet import plugins
from sublet.api.client import Client, connect
from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.runtime.clock import Clock
from sublet.runtime.jobs.file import job_from_command
from sublet.runtime.jobs.spec import spec_to_json
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over
from tests.rigs.story import LIMITS, OFFERS

AXE = Path(__file__).parents[1] / "vendor" / "axe" / "axe.min.js"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


@dataclass
class Fleet:
    """A controller in another thread: what changes its world goes through its loop."""

    cloud: MemoryCloud
    client: Client
    loop: asyncio.AbstractEventLoop
    state: StateDir

    def do(self, change: Any, *arguments: Any) -> None:
        self.loop.call_soon_threadsafe(change, *arguments)

    def link(self, client: Client | None = None) -> str:
        """That lets one browser in."""
        return f"{self.client.address}{(client or self.client).post('/v1/sessions')['path']}"


@contextmanager
def fleet(folder, steps=None, port=0):
    """Until the block ends; its jobs make steps for as long as anybody looks, but for those that have so many."""
    state, box, up = StateDir(folder / "state"), {}, threading.Event()
    state.prepare()

    async def live() -> None:
        cloud = MemoryCloud(OFFERS, Clock(speedup=60.0))
        cloud.jobs = _Endless({f"{name}-1": Training(steps=n, step_s=0.05) for name, n in (steps or {}).items()})
        with api_over(cloud, state.path, plugins.load("sublet.policies", "price")(), limits=LIMITS) as api:
            box.update(cloud=cloud, api=api, loop=asyncio.get_running_loop())
            serving = asyncio.create_task(
                serve(api, api.run, state=state, sock=bind("127.0.0.1", port), pid=os.getpid(), signals=False)
            )
            await api.started()
            while not state.address_file.exists() and not serving.done():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)
            up.set()
            await serving
            await cloud.close()

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    assert up.wait(120)
    try:
        yield Fleet(box["cloud"], connect(state.path), box["loop"], state)
    finally:
        with suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(box["api"].shutdown(), box["loop"])
        thread.join(120)
        assert not thread.is_alive()


class _Endless(dict):
    def setdefault(self, job_id, default=None):
        if job_id not in self:
            self[job_id] = Training(steps=10**9, step_s=0.05)
        return self[job_id]


@contextmanager
def browser():
    """Debian's Chromium, without a window; skipped where it or Playwright is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield chromium
        chromium.close()


def submit(there, name, workers=(1, 2), **facts):
    """The id of a job that trains."""
    body = spec_to_json(job_from_command(["true"], name=name, workers=workers), secrets=True)
    return there.client.post("/v1/jobs", {"job": {**body, "sdk": True, **facts}})["job_id"]


def a_worker(there, job_id):
    """Its node, its name, and the file of what it prints."""
    (worker,) = [
        each for node in list(there.cloud.nodes.values()) for each in node.workers.values() if each.job_id == job_id
    ]
    folder = there.state.path / "jobs" / job_id / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return worker, folder / f"{worker.id}.log"


def confirm(page, verb):
    """Say yes to what the page asks, and see that it is done."""
    page.locator("#ask").get_by_role("button", name=verb).click()
    page.locator("#ask").wait_for(state="hidden")


def faults_of_access(page, *rules) -> list[str]:
    """What axe-core finds on a page that is serious or worse; by some of its rules alone, if any are given."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    asked = {"runOnly": list(rules)} if rules else {}
    found = page.evaluate("async (asked) => (await axe.run(asked)).violations", asked)
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
