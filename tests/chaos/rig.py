"""What the kill tests stand on: a real controller in a process of its own, watched from outside as an auditor would.

Every process that comes of a rig carries its mark in the environment, so that what is left over is found by looking at
the machine, not by asking the controller.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sublet.api.client import Client, connect
from sublet.api.state import StateDir
from sublet.domain.money import Money
from sublet.errors import NoController, Refused, SubletError
from sublet.kernel.journal import replay
from sublet.runtime.jobs.spec import JobSpec, Retries, spec_to_json
from sublet.runtime.settings import Settings, settings_to_json
from sublet.runtime.store import Store

__all__ = ["CRASH_POINTS", "Rig", "rig"]

JOB = Path(__file__).with_name("job.py")
MARK = "SUBLET_CHAOS_MARK"
PATIENCE_S = 90.0
ENDED = ("finished", "failed", "cancelled")
COMMITS = (
    "BudgetChanged",
    "JobSubmitted",
    "PlanMade",
    "NodeReady",
    "JobStarted",
    "ProgressReported",
    "JobChanged",
    "NodeNoticed",
    "NodeLost",
    "JobResized",
    "JobStopped",
    "TimerFired",
    "JobFinished",
    "NodeReleased",
    "facts",
)
CRASH_POINTS = (
    *(f"{when}-commit:{kind}" for kind in COMMITS for when in ("before", "after")),
    *(f"{when}:{call}" for call in ("rent", "release") for when in ("before", "after")),
    "after:list",
)


Kind = TypeVar("Kind", bound="Rig")


class Rig:
    """One state directory, and the controllers that live in it one after the other."""

    program = "tests.chaos.controller"
    light = False  # nodes without torch: for jobs of talkers (tests/rigs/talker.py) and of plain scripts

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.state = StateDir(folder)
        self.state.prepare()
        self.mark = secrets.token_hex(8)
        facts = {"policy": "max-speedup", "speedup": 60.0, "lease_s": 60.0, "notice_s": 120.0, **settings}
        self.settings = Settings(state_dir=str(folder), **facts)
        self.state.write(self.state.settings, settings_to_json(self.settings))
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths = 0
        self.points: list[str] = []  # where the next controllers die, one after the other

    # ------------------------------------------------------------------ the controller

    def start(self, point: str = "none") -> None:
        """A controller, which may die at `point`; returns when it answers or has died."""
        with (self.state.path / "controller.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.program, str(self.state.path), point],
                env={**os.environ, MARK: self.mark, "OMP_NUM_THREADS": "1", "CHAOS_LIGHT": "1" if self.light else ""},
                stdout=log,
                stderr=log,
                cwd=Path(__file__).resolve().parents[2],
                start_new_session=True,
            )
        self.until(lambda: self.dead or self._ready(), "the controller answers")

    def _ready(self) -> bool:
        health = self.ask("health")
        return bool(health and health.get("ready"))

    @property
    def dead(self) -> bool:
        """Whether the controller has ended."""
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """As kill -9 does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.deaths += 1

    def revive_if_dead(self) -> None:
        """Another one, which may die at the next point."""
        while self.dead:
            self.deaths += 1
            self.start(self.points.pop(0) if self.points else "none")

    def down(self) -> None:
        """`sublet down`."""
        assert self.process is not None
        with contextlib.suppress(SubletError):
            self._client().post("/v1/shutdown")
        self.process.wait(120)

    # ------------------------------------------------------------------ asking

    def _client(self) -> Client:
        return connect(self.state.path)

    def ask(self, what: str, **query: Any) -> dict[str, Any] | None:
        """None while nobody answers."""
        try:
            return self._client().get(f"/v1/{what}", **query)
        except (NoController, Refused):
            return None

    def post(self, path: str, body: dict[str, Any] | None = None, key: str = "") -> dict[str, Any]:
        """Insist, as a client with an idempotency key may."""
        key = key or secrets.token_hex(8)
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._client().post(f"/v1/{path}", body, key=key)
            except NoController:
                if time.monotonic() > end_s:
                    raise
                self.revive_if_dead()
                time.sleep(0.05)

    def submit(self, *, steps: int = 150, step_ms: float = 10.0, key: str = "", **facts: Any) -> str:
        """A job of so many steps."""
        given = {"min_workers": 1, "max_workers": 2, "checkpoint_every_s": 60.0, "retries": Retries(infra=None)}
        argv = (sys.executable, str(JOB), str(32 * steps), "1", str(step_ms))
        spec = JobSpec(**{"name": "job", "argv": argv, "cwd": str(self.state.path), **given, **facts})
        answer = self.post("jobs", {"job": spec_to_json(spec, secrets=True)}, key)
        return str(answer["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Its view; {} while nobody answers."""
        answer = self.ask(f"jobs/{job_id}")
        return {} if answer is None else answer.get("job", answer)

    def steady(self, job_id: str) -> dict[str, Any]:
        """Its view, whoever has to come back to give it."""
        self.until(lambda: self.revive_if_dead() or self.job(job_id), "somebody answers")
        return self.job(job_id) or self.steady(job_id)

    def until(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait."""
        end_s = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > end_s:
                tail = (self.state.path / "controller.log").read_text(errors="replace")[-3000:]
                raise AssertionError(f"not within {patience_s:g} s: {what}\n{self.ask('jobs')}\n{tail}")
            time.sleep(0.05)

    def until_ended(self, *job_ids: str, patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Until these jobs have ended, whoever dies on the way."""

        def ended() -> bool:
            self.revive_if_dead()
            return all(self.job(job_id).get("phase") in ENDED for job_id in job_ids)

        self.until(ended, f"{job_ids} end", patience_s)
        return [self.steady(job_id) for job_id in job_ids]

    # ------------------------------------------------------------------ looking at the machine

    def processes(self) -> list[int]:
        """All that carry our mark, the controller and its template included."""
        found = []
        for name in os.listdir("/proc"):  # noqa: PTH208 - names are all it takes
            if name.isdigit():
                with contextlib.suppress(OSError):
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                    stat = Path(f"/proc/{name}/stat").read_text(encoding="ascii", errors="replace")
                    if f"{MARK}={self.mark}".encode() in environ and stat.rpartition(")")[2].split()[0] != "Z":
                        found.append(int(name))
        return found

    def agents(self) -> list[int]:
        """Leaders of sessions: nodes, whether the controller knows them or not."""
        nodes = list((self.state.path / "nodes").glob("*.life"))
        pids = []
        for path in nodes:
            with contextlib.suppress(OSError, ValueError, IndexError):  # gone, or not written yet
                pids.append(int(path.read_text(encoding="ascii").split()[0]))
        return [pid for pid in pids if pid in self.processes()]

    def workers(self) -> list[int]:
        """Training processes."""
        found, agents = [], set(self.agents())
        for pid in self.processes():
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
                if parent in agents:
                    found.append(pid)
        return found

    def kill_a_worker(self, rng: random.Random) -> bool:
        """SIGKILL, at random."""
        workers = self.workers()
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
        return bool(workers)

    def kill_a_node(self) -> None:
        """SIGKILL to an agent: its workers die with it, without a word."""
        for pid in self.agents()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_everything(self) -> None:
        """Controller, template, agents, workers: at once."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    # ------------------------------------------------------------------ the audit

    def audit(self) -> dict[str, Any]:
        """After `down`: nothing runs, the log gives the same life again, and the bill is that of the log, exactly."""
        self.until(lambda: not self.processes(), "nothing is left running")
        assert not list((self.state.path / "nodes").glob("*.json")), "a node is still recorded as rented"
        store = Store(self.state.path / "log.sqlite")
        header, lines = store.get("header"), list(store.lines())
        facts = store.jobs()
        told = Counter(row.kind for row in store.history(None, 0, 10**9))
        store.close()
        assert header is not None
        kernel = replay([header, *lines])
        assert not kernel.cluster.nodes, "the kernel still holds nodes"
        leases = kernel.ledger.closed
        assert len({lease.node_id for lease in leases}) == len(leases), "a node was rented twice"
        spent = kernel.ledger.spent(kernel.now_s)
        assert spent == sum((lease.cost for lease in leases), Money()), "the bill is not the sum of its leases"
        purse = kernel.supply.budget.purse
        assert purse is None or spent <= purse, f"{spent} of {purse}"
        return {
            "spent": spent,
            "nodes": len(leases),
            "events": len(lines),
            "facts": {j: f for j, _, f in facts},
            "leases": leases,
            "told": told,
        }


@contextlib.contextmanager
def rig(kind: type[Kind] = Rig, **settings: Any) -> Iterator[Kind]:  # type: ignore[assignment]  # its own default
    """A rig in a folder of its own; whatever happens, nothing of it is left running."""
    folder = Path(tempfile.mkdtemp(prefix="sublet-chaos-"))
    made = kind(folder / "state", **settings)
    try:
        yield made
    finally:
        for _ in range(20):
            if not made.processes():
                break
            for pid in made.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if made.process is not None:
            made.process.wait()
        shutil.rmtree(folder, ignore_errors=True)
