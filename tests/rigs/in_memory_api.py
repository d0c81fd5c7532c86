"""An API without a cloud behind it: jobs are rows in memory that a test moves along; served over real HTTP."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sublet.api.client import Client, connect
from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.errors import NoSuchJob, NotNow, OutOfBudget, Refused
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller_api import views
from sublet.runtime.controller_api.budgets import Budgets
from sublet.runtime.controller_api.directory import Directory
from sublet.runtime.controller_api.history import Prices
from sublet.runtime.controller_api.protocol import Api, Parts, Submitted
from sublet.runtime.controller_api.tokens import Tokens
from sublet.runtime.controller_api.views import (
    ENDED,
    BudgetView,
    CostView,
    DryRunView,
    EventView,
    ExplainView,
    HealthView,
    HistogramView,
    JobView,
    MetricsView,
    NodeView,
)
from sublet.runtime.file_sync.content import Content
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.memory_cloud import one_gpu_offer

HISTOGRAM: HistogramView = {"bounds": [0.5, 2.0], "counts": [3, 1, 1], "total": 7.25}
BILL: dict[str, float] = {
    "usd_useful": 0.6,
    "usd_unknown": 0.0,
    "usd_redone": 0.0,
    "usd_restart": 0.1,
    "usd_idle": 0.2,
    "usd_checkpoint": 0.1,
    "usd_total": 1.0,
}


@dataclass
class _Names:
    records: dict[str, dict[str, Any]]

    @property
    def named(self) -> dict[str, list[str]]:
        names = {row["name"] for row in self.records.values()}
        return {name: [job_id for job_id, row in self.records.items() if row["name"] == name] for name in names}


class _Facts(dict[str, str]):
    def put(self, key: str, value: str) -> None:
        self[key] = value


@dataclass
class InMemoryApi:
    folder: Path
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    specs: dict[str, JobSpec] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    history: list[EventView] = field(default_factory=list)
    burn: float | None = 2.0
    purse: float | None = 5.0
    spent: float = 1.0
    stopping: bool = False
    earlier: int = 0  # jobs on the shelf
    ended_jobs: bool = False
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.over = asyncio.Event()
        self.parts = Parts(Content(self.folder / "content"))
        self.prices = Prices(lambda: Kernel([one_gpu_offer()]))
        self.tokens = Tokens(_Facts(), lambda row, by: self.tell(row.kind, "", row.text, by))
        self.directory = Directory(_Names(self.rows), is_alive=lambda job_id: self.rows[job_id]["phase"] not in ENDED)

        self.kernel = Kernel([one_gpu_offer()])
        self.budgets = Budgets(
            kernel=lambda: self.kernel,
            now_s=lambda: self.now_s,
            unix_s=lambda: 1_796_000_000.0,
            tell=lambda event, _: self.kernel.handle(event) and None,
            started=partial(asyncio.sleep, 0.0),
            tokens=self.tokens,
            directory=self.directory,
        )

    async def run(self) -> None:
        await self.over.wait()

    def tell(self, kind: str, job_id: str, text: str, by: str = "") -> None:
        self.now_s += 60.0
        row = self.rows.get(job_id, {})
        held = sum(each["workers"] for each in self.rows.values())
        self.history.append(
            {
                "seq": len(self.history) + 1,
                "at_s": self.now_s,
                "at": "2026-01-01T00:00:00Z",
                "kind": kind,
                "job_id": job_id,
                "node_id": "",
                "text": text,
                "by": by,
                "workers": row.get("workers"),
                "grid": row.get("grid", ""),
                "nodes_held": held,
                "usd_per_h": 0.3 * held,
                "usd_total": self.spent,
            }
        )

    async def submit(self, spec: JobSpec, *, key: str = "", by: str = "") -> Submitted:
        if key in self.keys:
            job_id = self.keys[key]
            return {"job_id": job_id, "name": self.specs[job_id].name}
        if self.purse is not None and self.spent >= self.purse:
            raise OutOfBudget("no new job can start", spent_usd=self.spent, limit_usd=self.purse)
        job_id = f"j{len(self.rows) + 1}-{spec.name[:4]}"
        self.keys[key or job_id] = job_id
        self.specs[job_id] = spec
        self.rows[job_id] = row_from(job_id, spec)
        self.tell("JobSubmitted", job_id, f"{spec.name} was submitted", by)
        return {"job_id": job_id, "name": spec.name}

    def change(self, job_id: str, **facts: Any) -> JobView:
        self.rows[job_id] |= facts
        return self.rows[job_id]  # type: ignore[return-value]

    async def dry_run(self, spec: JobSpec) -> DryRunView:
        return {
            "name": spec.name,
            "feasible": True,
            "shape": f"{spec.max_workers} x cpu-spot",
            "workers": spec.max_workers,
            "usd_per_h": 0.3 * spec.max_workers,
            "starts_s": 1.0,
            "finish_s": {"p10": 100.0, "p50": 120.0, "p90": 180.0},
            "cost_usd": {"p10": 0.01, "p50": 0.02, "p90": 0.03},
            "usd_on_demand": 0.06,
            "reason": "the widest pays for itself",
            "alternatives": [],
            "notes": ["speed not measured yet"],
        }

    async def jobs(self) -> Sequence[JobView]:
        return list(self.rows.values())  # type: ignore[arg-type]

    async def job(self, job_id: str) -> JobView:
        if job_id not in self.rows:
            raise NoSuchJob(job_id, self.rows)
        return self.rows[job_id]  # type: ignore[return-value]

    async def cancel(self, job_id: str, *, now: bool = False, by: str = "") -> JobView:
        if self.rows[job_id]["phase"] not in ENDED:
            self.change(job_id, phase="cancelled", workers=0, reason="now" if now else "saved")
            self.tell("JobCancelled", job_id, "cancelled by the user", by)
        return await self.job(job_id)

    async def pause(self, job_id: str, *, by: str = "") -> JobView:
        if self.rows[job_id]["phase"] in ENDED:
            raise NotNow(job_id, self.rows[job_id]["phase"], "pause")
        self.tell("Paused", job_id, "held back by its owner", by)
        return self.change(job_id, phase="paused", workers=0)

    async def resume(self, job_id: str, *, start_over: bool = False, secrets=None, by: str = "") -> JobView:
        if self.rows[job_id]["phase"] not in ("paused", "out-of-budget", "failed"):
            raise NotNow(job_id, self.rows[job_id]["phase"], "resume")
        return self.change(job_id, phase="queued", reason="from step 0" if start_over else "")

    async def top_up_job(self, job_id: str, usd: float, *, by: str = "") -> JobView:
        return self.change(job_id, purse_usd=(self.rows[job_id]["purse_usd"] or 0.0) + usd)

    async def scale(self, job_id: str, *, low: int, high: int, by: str = "") -> JobView:
        self.specs[job_id] = replace(self.specs[job_id], min_workers=low, max_workers=high, sizes=())
        return self.change(job_id, min_workers=low, max_workers=high)

    async def events(
        self, job_id: str | None = None, *, after: int = 0, limit: int = 1000, newest: bool = False
    ) -> Sequence[EventView]:
        found = [event for event in self.history if event["seq"] > after and job_id in (None, event["job_id"])]
        return found[-limit:] if newest else found[:limit]

    async def log_parts(self, job_id: str, *, rank: int | None = 0, worker_id: str = "") -> views.JobLog:
        ranks = (0, 1) if rank is None else (rank,)
        parts = [views.LogPart(path=str(self.folder / f"{job_id}-{r}.log"), rank=r) for r in ranks]
        return views.JobLog(parts=tuple(parts), hide=tuple(self.specs[job_id].secrets.values()))

    async def cost(self, job_id: str | None = None) -> CostView:
        if job_id is not None:
            return cost_from(self.rows[job_id])
        jobs = [cost_from(row) for row in self.rows.values()]
        whole = {name: sum(job[name] for job in jobs) for name in BILL}
        whole["usd_idle"] += 0.5
        whole["usd_total"] += 0.5
        return {**cost_from(row_from("", None)), **whole, "job_id": "", "name": "", "jobs": jobs}  # type: ignore[typeddict-item]

    async def explain(self, job_id: str) -> ExplainView:
        base = {"market": "spot", "samples_per_s": 100.0, "left_s": 60.0, "left_usd": 0.01}
        base |= {"batch": None, "known": ""}
        base |= {"workers_on_demand": 0, "grid": None, "losses": 0.5, "restarts": 0.5}
        base |= {"time_usd": 0.03, "scarce_usd": 0.0, "other_usd": 0.0}
        return {
            "job_id": job_id,
            "at_s": self.now_s,
            "policy": "price",
            "shape": "2 x cpu-spot",
            "reason": "a third worker would cost more than the time it saves",
            "value_of_time_usd_per_h": 1.5,
            "congestion_usd_per_gpu_h": {"cpu-spot": 0.1},
            "alternatives": [
                {**base, "shape": "1 x cpu-spot", "workers": 1, "usd_per_h": 0.3, "price_usd": 0.05}
                | {"chosen": False, "why": "slower"},
                {**base, "shape": "2 x cpu-spot", "workers": 2, "usd_per_h": 0.6, "price_usd": 0.04}
                | {"chosen": True, "why": "cheapest"},
            ],
            "notes": [],
        }  # type: ignore[typeddict-item]

    async def budget(self) -> BudgetView:
        left = None if self.purse is None else self.purse - self.spent - 0.1
        return {
            "burn_limit_usd_per_h": self.burn,
            "average_usd_per_h": None,
            "purse_usd": self.purse,
            "spent_usd": self.spent,
            "reserved_usd": 0.1,
            "left_usd": left,
            "burn_usd_per_h": 0.6,
            "exhausted": left is not None and left <= 0,
            "unattended_usd": 0.0,
        }

    async def set_budget(
        self,
        *,
        burn_limit_usd_per_h: float | None = None,
        average_usd_per_h: float | None = None,
        purse_usd: float | None = None,
        by: str = "",
    ) -> BudgetView:
        self.burn = burn_limit_usd_per_h or self.burn
        self.purse = purse_usd or self.purse
        return await self.budget()

    async def top_up(self, usd: float, *, by: str = "") -> BudgetView:
        self.purse = (self.purse or 0.0) + usd
        return await self.budget()

    async def nodes(self) -> Sequence[NodeView]:
        running = [job_id for job_id, row in self.rows.items() if row["workers"]]
        return [
            {
                "id": "n1",
                "offer_id": "local:cpu:spot",
                "market": "spot",
                "gpu": "cpu",
                "phase": "noticed",
                "usd_per_h": 0.3,
                "since_s": 0.0,
                "until_s": 120.0,
                "slots": 1,
                "job_ids": running[:1],
                "hazard_per_h": 0.0,
            }
        ]

    async def health(self) -> HealthView:
        return {
            "ready": True,
            "started": True,
            "why": "",
            "version": "0",
            "provider": "local",
            "engine": "local",
            "policy": "price",
            "now_s": self.now_s,
            "speedup": 60.0,
            "wall_up_s": 1.0,
            "last_reconcile_wall_s": 0.5,
            "stopping": self.stopping,
            "earlier_jobs": self.earlier,
        }

    async def metrics(self) -> MetricsView:
        return {
            "notice_to_commit_s": HISTOGRAM,
            "recovery_s": HISTOGRAM,
            "decision_s": HISTOGRAM,
            "resizes": {"grow": 2, "loss": 1},
            "provider_calls": {"rent": {"ok": 4, "refused": 1}},
            "orphans_found": 0,
            "checkpoints_damaged": 0,
            "short_of_memory": 0,
            "alarms": {"policy": 2},
            "reconcile_s": 0.01,
            "reconciled_at": 1.7e9,
            "price_age_s": 3.0,
            "steps": {},
        }

    async def shutdown(self, *, end_jobs: bool = False, by: str = "") -> None:
        self.stopping, self.ended_jobs = True, end_jobs
        self.over.set()


def row_from(job_id: str, spec: JobSpec | None) -> dict[str, Any]:
    return {
        "id": job_id,
        "name": spec.name if spec else "",
        "phase": "queued",
        "reason": "waits for a node",
        "submitted_s": 0.0,
        "started_s": None,
        "ended_s": None,
        "workers": 0,
        "workers_wanted": spec.max_workers if spec else 0,
        "user": "",
        "team": "",
        "min_workers": spec.min_workers if spec else 1,
        "max_workers": spec.max_workers if spec else 1,
        "shape": "",
        "grid": "",
        "spares": 0,
        "places": [],
        "gpus": [],
        "moves": [],
        "node_ids": [],
        "generation": 0,
        "step": 0,
        "epoch": 0,
        "done": 0.0,
        "work": None,
        "progress": None,
        "had_h": None,
        "size_h": None,
        "loss": None,
        "global_batch": None,
        "step_s": None,
        "samples_per_s": None,
        "usd_per_h": 0.0,
        "usd_on_demand": None,
        "purse_usd": None,
        "deadline_s": None,
        "eta_s": None,
        "forecast_usd": None,
        "preemptions_noticed": 0,
        "preemptions_unnoticed": 0,
        "resizes": 0,
        "steps_lost": 0,
        "checkpoint_step": None,
        "checkpoint_newest": None,
        "checkpoint_tier": "",
        "failures_infra": 0,
        "failures_user": 0,
        "exit_code": None,
        "error": "",
        "warnings": [],
        **dict.fromkeys(BILL, 0.0),
    }


RUNNING: dict[str, Any] = {
    "phase": "running",
    "workers": 2,
    "shape": "2 x cpu-spot",
    "step": 40,
    "epoch": 1,
    "done": 4000.0,
    "work": 10_000.0,
    "progress": 0.4,
    "loss": 1.234,
    "global_batch": 100,
    "step_s": 0.05,
    "samples_per_s": 2000.0,
    "usd_per_h": 0.6,
    "usd_on_demand": 2.5,
    "eta_s": {"p10": 100.0, "p50": 120.0, "p90": 180.0},
    "forecast_usd": {"p10": 1.2, "p50": 1.5, "p90": 2.0},
    "gpus": [
        {"worker_id": "w0", "node_id": "n1", "rank": 0, "gpus": 1, "busy": 0.5}
        | {"memory_bytes": 2 << 30, "memory_of_bytes": 16 << 30}
    ],
    **BILL,
}


def cost_from(row: dict[str, Any]) -> CostView:
    shared = set(CostView.__annotations__) & set(row)
    return {
        **{name: row[name] for name in shared},
        "job_id": row["id"],
        "tiers": [],
        "moves": [],
        "jobs": [],
        "days": [],
    }  # type: ignore[typeddict-item, return-value]


@dataclass
class Served:
    api: InMemoryApi
    state: StateDir
    client: Client
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """The API on a free loopback port, in a thread of its own, until the block ends."""
    state = StateDir(folder / "state")
    state.prepare()
    box: dict[str, Any] = {}
    up = threading.Event()

    async def whole() -> None:
        api: InMemoryApi = InMemoryApi(folder)
        contract: Api = api
        box["api"], box["loop"] = api, asyncio.get_running_loop()
        task = asyncio.create_task(
            serve(contract, api.run, state=state, sock=bind("127.0.0.1", 0), pid=os.getpid(), signals=False)
        )
        while not state.address_file.exists() and not task.done():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        up.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(whole()), daemon=True)
    thread.start()
    assert up.wait(120)
    try:
        yield Served(box["api"], state, connect(state.path), box["loop"], thread)
    finally:
        with suppress(RuntimeError):  # it has stopped already
            box["loop"].call_soon_threadsafe(box["api"].over.set)
        thread.join(120)
        assert not thread.is_alive()


def status(ask: Callable[[], object]) -> int:
    """Of the answer: 200, or what it was refused with."""
    try:
        ask()
    except Refused as error:
        return error.status
    return 200
