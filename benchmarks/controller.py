"""How quick the controller stays with many jobs: `python -m benchmarks.controller [JOBS] [NODES] [SECONDS]`.

The real controller, kernel, policy and store; nodes and workers are in memory and report five times a second each job.
Two thirds of the jobs are there at the start; then one is submitted every tenth of a second, and a node is lost every
half second.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.plan import Plan, Snapshot
from sublet.runtime.clock import Clock
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over, one_gpu_offer


class Timed:
    """A policy with a watch."""

    def __init__(self, name: str) -> None:
        self.policy = plugins.load("sublet.policies", name)()  # type: ignore[operator]
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []  # without the time in which others had the processor

    def decide(self, snapshot: Snapshot) -> Plan:
        """Measured."""
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.policy.decide(snapshot)  # type: ignore[no-any-return]
        finally:
            self.seconds.append(time.perf_counter() - began)
            self.cpu_seconds.append(time.thread_time() - cpu)


def measure(jobs: int, nodes: int, seconds: float, policy: str = "price") -> dict[str, float]:
    """Figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Path(folder), jobs, nodes, seconds, policy))


async def _run(folder: Path, jobs: int, nodes: int, seconds: float, policy: str) -> dict[str, float]:
    clock = Clock(speedup=60.0)
    cloud = MemoryCloud([one_gpu_offer("spot", hazard_per_h=0.01), one_gpu_offer("on-demand", 1.5)], clock)
    limits = {"spot": Limit(max_nodes=nodes), "on-demand": Limit(max_nodes=nodes // 10)}
    timed, rng = Timed(policy), random.Random(0)  # noqa: S311 - losses by rng
    width = max(1, nodes // jobs)
    lags: list[float] = []
    submits: list[float] = []
    with api_over(cloud, folder / "state", timed, limits=limits) as api:
        running = asyncio.create_task(api.run())
        await api.started()
        early = jobs * 2 // 3
        for number in range(early):
            await _submit(api, cloud, number, width)
        began = time.monotonic()
        deadline = began + 120
        while time.monotonic() < deadline and await _training(api) < 0.9 * early:  # noqa: ASYNC110 - with a deadline
            await asyncio.sleep(0.5)
        ramp_s = time.monotonic() - began
        timed.seconds.clear()
        timed.cpu_seconds.clear()
        watching = asyncio.create_task(_watch(lags))
        cpu, began, number = time.process_time(), time.monotonic(), early
        while time.monotonic() - began < seconds:
            if number < jobs:
                asked = time.perf_counter()
                await _submit(api, cloud, number, width)
                submits.append(time.perf_counter() - asked)
                number += 1
            if number % 5 == 0 and cloud.nodes:
                cloud.take(rng.choice(list(cloud.nodes)))
            await asyncio.sleep(0.1)
        wall_s = time.monotonic() - began
        cpu_share = (time.process_time() - cpu) / wall_s
        watching.cancel()
        trained = await _training(api)
        held = len(cloud.nodes)
        views_s = await _views(api)
        running.cancel()
        await cloud.close()
        await asyncio.gather(running, watching, return_exceptions=True)
    return {
        "jobs_training": trained,
        "nodes_held": held,
        "ramp_s": ramp_s,
        "decisions": len(timed.seconds),
        "decision_p50_s": float(np.quantile(timed.seconds, 0.5)),
        "decision_p99_s": float(np.quantile(timed.seconds, 0.99)),
        "decision_cpu_p99_s": float(np.quantile(timed.cpu_seconds, 0.99)),
        "submit_p50_s": float(np.quantile(submits, 0.5)),
        "submit_p99_s": float(np.quantile(submits, 0.99)),
        "loop_lag_p99_s": float(np.quantile(lags, 0.99)),
        "jobs_view_s": views_s,
        "cpu_share": cpu_share,
    }


async def _submit(api: ControllerApi, cloud: MemoryCloud, number: int, width: int) -> None:
    spec = JobSpec(name=f"job{number}", argv=("x",), cwd="/", min_workers=1, max_workers=2 * width)
    cloud.jobs[f"job{number}-1"] = Training(steps=100_000_000, step_s=0.02)
    await api.submit(spec, key=f"key{number}")


async def _watch(lags: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.01)
        lags.append(time.perf_counter() - began - 0.01)


async def _training(api: ControllerApi) -> int:
    return sum(bool(view["step"]) for view in await api.jobs())


async def _views(api: ControllerApi) -> float:
    began = time.perf_counter()
    await api.jobs()
    return time.perf_counter() - began


def main() -> None:
    """Print the figures and what they should be."""
    jobs, nodes, seconds = (float(a) for a in (*sys.argv[1:4], *("500", "2000", "25")[len(sys.argv) - 1 :]))
    figures = measure(int(jobs), int(nodes), seconds)
    for name, value in figures.items():
        print(f"{name:18} {value:.4g}")
    print("aims: decision_p99_s <= 1, submit_p99_s <= 0.5")


if __name__ == "__main__":
    main()
