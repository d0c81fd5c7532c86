"""How fast the simulator is, and that it does not slow down as queues grow. Run by `make bench`.

Figures are CPU seconds of this process, so a busy machine disturbs them less; each is printed with what it is of.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from benchmarks import advise, allocate, decide, live, liveput, log, menus, solve
from sublet import plugins
from sublet.domain.budget import Limit
from sublet.domain.events import Event
from sublet.domain.job import Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.domain.plan import Policy
from sublet.kernel.kernel import Kernel
from sublet.perf.speedup import Amdahl
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.workloads import load_workload

T = TypeVar("T")
RIGID = ("fifo", "srtf", "las")  # their work per decision is bounded by the running jobs
PHILLY_GOAL = 3_000
POLLUX_GOAL_S = 1.0
MEMORY_GOAL_MB = 1_000


def main() -> None:
    """Run every part; with an argument, only that part, in this process."""
    parts = {
        "philly": philly,
        "pollux": pollux,
        "events": events,
        "queues": queues,
        "solve": solve.main,
        "allocate": allocate.main,
        "decide": decide.main,
        "menus": menus.main,
        "liveput": liveput.main,
        "advise": advise.main,
        "live": live.main,
        "log": lambda: log.table([1_000, 10_000, 100_000]),
    }
    if len(sys.argv) > 1:
        parts[sys.argv[1]]()
        return
    for name in parts:  # one process each, so that peak memory is a part's own
        subprocess.run([sys.executable, "-m", "benchmarks.run", name], check=True)  # noqa: S603 - ourselves


def philly() -> None:
    """82,247 jobs of the Philly trace, first come first served, on 2,000 GPUs."""
    workload, read_s = _cpu(lambda: load_workload("philly"))
    cloud = _cloud(gpus=2_000, gpus_per_node=8, gpu="V100")
    run, run_s = _cpu(lambda: simulate(workload.jobs, _policy("fifo"), cloud, keep_segments=False))
    jobs = len(workload.jobs)
    print(f"philly, {jobs:,} jobs, fifo, 2,000 GPUs")
    print(f"  read            {read_s:8.2f} s")
    print(f"  simulate        {run_s:8.2f} s   {run.metrics.plans:,} plans")
    print(f"  jobs per s      {jobs / run_s:8,.0f}     goal {PHILLY_GOAL:,} or more")
    print(f"  peak memory     {_peak_mb():8,.0f} MB  goal under {MEMORY_GOAL_MB:,}\n")


def pollux() -> None:
    """160 jobs with measured profiles on 64 GPUs, each policy; the second run of two, so that tables are loaded."""
    workload = load_workload("pollux-1")
    cloud = _cloud(gpus=64, gpus_per_node=4, gpu="T4")
    print(f"pollux-1, {len(workload.jobs)} jobs, 64 GPUs, goal under {POLLUX_GOAL_S:g} s each")
    print("  policy         CPU s   first   jobs/s    plans  us/plan")
    for name in plugins.names("sublet.policies"):
        _, first_s = _cpu(lambda name=name: simulate(workload.jobs, _policy(name), cloud))
        run, run_s = _cpu(lambda name=name: simulate(workload.jobs, _policy(name), cloud))
        plans = run.metrics.plans
        per_plan_us = run_s / plans * 1e6
        print(f"  {name:<12} {run_s:7.3f} {first_s:7.3f} {160 / run_s:8,.0f} {plans:8,} {per_plan_us:8,.0f}")
    print()


def events() -> None:
    """The kernel alone: the events of a recorded run, fed to a new kernel; no world, no policy."""
    print("kernel, microseconds per event (without world and policy)")
    for name, gpus, gpus_per_node, head in (("philly", 2_000, 8, 20_000), ("pollux-1", 64, 4, 160)):
        jobs = load_workload(name).jobs[:head]
        cloud = _cloud(gpus=gpus, gpus_per_node=gpus_per_node, gpu="T4")
        heard: list[Event] = []
        simulate(jobs, _policy("fifo"), cloud, watch=lambda event, _, heard=heard: heard.append(event))

        def replay(cloud: Cloud = cloud, heard: list[Event] = heard) -> None:
            kernel = Kernel(cloud.offers, limits=cloud.limits, budget=cloud.budget)
            for event in heard:
                kernel.handle(event)

        _, run_s = _cpu(replay)
        print(f"  {name:<12} {run_s / len(heard) * 1e6:8.1f} us   over {len(heard):,} events")
    print()


def queues() -> None:
    """Everything submitted at once: the cost of a job must not grow with the queue in front of it."""
    print("all jobs queued at once on 64 GPUs: CPU microseconds per job, and the ratio to 1,000 jobs")
    speed = Amdahl(parallel=0.95)
    cloud = _cloud(gpus=64, gpus_per_node=8, gpu="T4")
    for name in plugins.names("sublet.policies"):
        line, base = f"  {name:<12}", 0.0
        for count in (1_000, 10_000, 100_000) if name in RIGID else (1_000, 10_000):
            sizes = np.random.default_rng(count).exponential(3600.0, count)
            jobs = [
                Job(id=f"j{i}", submit_s=0.0, work=float(work), speed=speed, gpus=1 + i % 4)
                for i, work in enumerate(sizes)
            ]
            _, run_s = _cpu(lambda jobs=jobs, name=name: simulate(jobs, _policy(name), cloud, keep_segments=False))
            per_job_us = run_s / count * 1e6
            base = base or per_job_us
            line += f"   {count:>7,}: {per_job_us:7.0f} us ({per_job_us / base:4.2f}x)"
        print(line)


def _policy(name: str) -> Policy:
    made: Policy = plugins.load("sublet.policies", name)()  # type: ignore[operator]
    return made


def _cloud(*, gpus: int, gpus_per_node: int, gpu: str) -> Cloud:
    price = Price.from_usd_per_h(gpus_per_node)
    offer = Offer(id="bench", gpu=gpu, gpus_per_node=gpus_per_node, market=Market.ON_DEMAND, price=price)
    nodes = gpus // gpus_per_node
    return Cloud(offers=(offer,), limits={"bench": Limit(min_nodes=nodes, max_nodes=nodes)})


def _cpu(work: Callable[[], T]) -> tuple[T, float]:
    started_s = time.process_time()
    result = work()
    return result, time.process_time() - started_s


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux, bytes on macOS
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    main()
