"""One policy at work: a real controller, agents and workers of this machine, on nodes of a small cloud of its own.

Computing is slept (`sublet.testing.paced`). Each job was measured before, so its speeds are known when it comes. A test
ends as soon as it has seen the decision. That is read from the log, and the answer of another policy to the very same
snapshots stands beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.shape import Shape
from sublet.kernel.values_json import from_plain
from sublet.perf.live.rows import StepRow
from sublet.perf.live.stored import StoredProfile
from sublet.runtime.agent.nursery import PRELOAD
from sublet.runtime.controller_api import assemble
from sublet.runtime.profiles.store import script_digest
from sublet.runtime.providers.local.nodes import Template, TemplateForker
from sublet.runtime.providers.local.provider import Box, LocalProvider
from sublet.runtime.providers.setup import ProviderSetup
from sublet.runtime.settings import Settings
from sublet.testing.paced.run import PacedJob

PATIENCE_S = 120.0  # far beyond what anything here takes: a test that needs it fails
BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of a step: a floor, a time for each sample of a worker, and one to exchange gradients; by kind of GPU."""

    floor_ms: float
    sample_ms: float
    sync_ms: float = 5.0
    slower: Mapping[str, float] = field(default_factory=lambda: {"T4": 1.0})  # kind -> times as long

    def step_s(self, gpu, gpus):
        share = math.ceil(BATCH / gpus)
        return self.slower[gpu] * (self.floor_ms + self.sample_ms * share + self.sync_ms * (gpus > 1)) / 1e3


@dataclass(frozen=True, kw_only=True)
class Work:
    """A job of the paced script; `facts` go into its specification."""

    name: str
    pace: Pace
    most: int = 1
    samples: int = 4096
    features: int = 3  # one less than its gradient noise scale
    largest: int = BATCH  # global batch that its owner allows
    facts: Mapping[str, object] = field(default_factory=dict)

    def spec(self, home):
        flags = {
            "floor-ms": self.pace.floor_ms,
            "sample-ms": self.pace.sample_ms,
            "sync-ms": self.pace.sync_ms,
            "samples": self.samples,
            "features": self.features,
            "batch": BATCH,
            "largest": self.largest if self.largest > BATCH else 0,
        }
        spec = PacedJob(name=self.name, most=self.most, flags=flags).spec(home)
        return replace(spec, work=float(self.samples), **self.facts)

    def measured(self, spec, folder):
        """Its profiles, as `sublet profile` leaves them."""
        folder.mkdir(parents=True, exist_ok=True)
        for gpu in self.pace.slower:
            rows = tuple(self._row(gpu, gpus) for gpus in range(1, self.most + 1))
            profile = StoredProfile(
                name=self.name,
                script=script_digest(spec),
                gpu=gpu,
                torch="",
                date="2026-01-01",
                batches=(BATCH, BATCH, self.largest),
                batch=BATCH,
                noise=None,
                rows=rows,
            )
            (folder / f"{self.name}-{gpu}.csv").write_text(profile.to_text(), encoding="utf-8")

    def _row(self, gpu, gpus):
        step_s = self.pace.step_s(gpu, gpus)
        wait_s = self.pace.slower[gpu] * self.pace.sync_ms * (gpus > 1) / 1e3
        samples = math.ceil(BATCH / gpus)
        return StepRow(
            gpu=gpu, gpus=gpus, nodes=gpus, samples=samples, step_s=step_s, piece_s=step_s - wait_s, wait_s=wait_s
        )


class Agents(TemplateForker):
    """One template for all tests of a process: to import takes longer than any of them."""

    def __init__(self, folder):
        super().__init__(Template(PRELOAD, folder / "template.log"))

    async def stop(self):
        """The next test needs it."""

    async def end(self):
        await super().stop()


class Cloud(LocalProvider):
    """Its supply is what a test says."""

    def supply(self, offer_id, nodes):
        self._resupply(AvailabilityChanged(self._clock.now_s(), offer_id, nodes))


@dataclass(kw_only=True)
class Beside:
    """A policy; and what another one would have ordered, asked about the same snapshots."""

    policy: object
    other: object
    began: dict = field(default_factory=dict)  # job id -> shapes that the other gave it while it had nothing
    changed: dict = field(default_factory=dict)  # ... and while it had something, with what this one gave it (or not)

    def decide(self, snapshot):
        plan = self.policy.decide(snapshot)
        for job_id, shape in self.other.decide(snapshot).shapes.items():
            if job_id not in snapshot.active:
                self.began.setdefault(job_id, set()).add(shape)
            else:
                self.changed.setdefault(job_id, []).append((shape, plan.shapes.get(job_id)))
        return plan


@dataclass(kw_only=True)
class Live:
    """The controller of one policy, its cloud, and what was seen."""

    api: object
    cloud: Cloud
    home: Path
    beside: Beside
    names: dict = field(default_factory=dict)  # job id -> name

    async def submit(self, work):
        spec = work.spec(self.home)
        if isinstance(work, Work):
            work.measured(spec, self.home / "state" / "profiles")
        job_id = (await self.api.submit(spec))["job_id"]
        self.names[job_id] = spec.name
        return job_id

    def orders(self):
        """Job -> the shapes into which it was started or moved, and None for each stop, in order."""
        found = {name: [] for name in self.names.values()}
        for line in self.api._controller.store.lines():
            for order in json.loads(line)["actions"]:
                if order["type"] in ("StartJob", "ResizeJob", "StopJob") and order["job_id"] in self.names:
                    shape = order.get("shape")
                    found[self.names[order["job_id"]]].append(None if shape is None else from_plain(Shape, shape))
        return found

    def widths(self):
        return {
            name: [0 if shape is None else shape.gpus for shape in shapes] for name, shapes in self.orders().items()
        }

    def now(self):
        return {name: (widths or [0])[-1] for name, widths in self.widths().items()}

    def last(self, name):
        return next(iter(self.orders()[name][::-1]), None)

    def would(self, job_id):
        return self.beside.began.get(job_id, set())

    def would_change(self, job_id):
        return self.beside.changed.get(job_id, [])

    def trains(self, job_id):
        return self.api.record(job_id).group.step > 0

    async def until(self, condition, what):
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"not seen: {what}; orders: {self.orders()}"
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def policy_at_work(policy, agents, offers, *, beside, most_nodes, speedup=200.0, **settings):
    """A controller at work; whatever happens, nothing of it is left running."""
    home = Path(tempfile.mkdtemp(prefix="sublet-live-"))
    (home / "state").mkdir()
    made = []

    def build(settings, clock, store):
        box = Box(lease_s=settings.lease_s)
        cloud = Cloud(state_dir=home / "state", clock=clock, offers=offers, box=box, forker=agents)
        made.append(cloud)
        limits = {offer.id: Limit(max_nodes=most_nodes) for offer in offers}
        address = f"unix:{home / 'state' / 'agents.sock'}"
        return ProviderSetup(provider=cloud, address=address, lease_s=settings.lease_s, limits=limits, warm=cloud.warm)

    asked = Settings(state_dir=str(home / "state"), policy=policy, speedup=speedup, lease_s=30.0, **settings)
    with mock.patch.object(assemble, "_builder", return_value=build):
        own = Beside(policy=assemble.policy_from(asked), other=plugins.load("sublet.policies", beside)())
        api = assemble.controller_from(asked, own)
    running = asyncio.create_task(api.run())
    live = Live(api=api, cloud=made[0], home=home, beside=own)
    try:
        await api.started()
        yield live
    finally:
        for job_id in live.names:
            await api.cancel(job_id, now=True)
        await api.shutdown(end_jobs=True)
        await running
        left = list((home / "state" / "nodes").glob("*.json"))
        shutil.rmtree(home, ignore_errors=True)
        assert not left, "a node is left"
