"""How many single objects a second the API gives away: `python -m benchmarks.reads [JOBS] [NODES] [alone]`.

The real controller, its routes and its server on a socket; nodes and workers are in memory. All jobs have their nodes
and train, then one of them tells of a step every 20 ms, so that the processor is the API's and yet nobody is taken to
hang. Another process asks for one job by its id, one by its name, for the events after the last, and for the budget,
over eight lines; first with a tenth of all, which `alone` leaves out. All four are asked for by turns, each time in
another order, after a turn that does not count. Beside what came is what one answer takes of this process's own time,
and what of that is left when the time is taken off that the controller takes for itself while nobody asks, which is
measured before each; on one core, answers have the rest of each second. Of all turns the median is printed. On a busy
machine less comes, and both of these hold, about.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from sublet import plugins
from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller_api.api import ControllerApi
from sublet.runtime.controller_api.views import JobView
from sublet.runtime.jobs.spec import JobSpec
from sublet_lab.memory_cloud import MemoryCloud, Training, api_over, one_gpu_offer

GOAL_PER_S = 1_000
ASKED, TURNS = 1_000, 5  # in each turn, of which the first does not count
ASKER, ALONE = "ask", "alone"
LINES = 8
LONGEST_RAMP_S = 180.0
SETTLES_S = 2.0  # what was ordered last is done by then
ALONE_S = 1.5
QUIET_S = 0.02  # between two reports of whichever jobs: each of 500 is heard of every 10 s, and hangs after 60
POLL_S = 2.0
Figures = tuple[float, float, float, float]  # answers per second; CPU seconds for one; of these its own; on one core
WORK = 1e9  # samples: nobody finishes meanwhile


def measure(jobs: int, nodes: int) -> dict[str, Figures]:
    """By what was asked."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Path(folder), jobs, nodes))


async def _run(folder: Path, jobs: int, nodes: int) -> dict[str, Figures]:
    clock = Clock(speedup=60.0)
    cloud = MemoryCloud([one_gpu_offer("spot", hazard_per_h=0.01), one_gpu_offer("on-demand", 1.5)], clock)
    limits = {"spot": Limit(max_nodes=nodes), "on-demand": Limit(max_nodes=nodes // 10)}
    policy = plugins.load("sublet.policies", "equal")()  # type: ignore[operator]
    state = StateDir(folder / "state")
    state.prepare()
    with api_over(cloud, folder / "state", policy, limits=limits) as api:
        sock = bind("127.0.0.1", 0)
        running = asyncio.create_task(serve(api, api.run, state=state, sock=sock, pid=0, signals=False))
        await api.started()
        await fill(api, cloud, jobs, nodes)
        cloud.between_s = QUIET_S
        found = await _ask_all(state, sock.getsockname()[1], jobs, (await api.events(limit=1, newest=True))[-1]["seq"])
        await api._controller.abandon()  # noqa: SLF001 - a shutdown would save every job first
        await cloud.close()
        await asyncio.gather(running, return_exceptions=True)
    return found


async def fill(api: ControllerApi, cloud: MemoryCloud, jobs: int, nodes: int) -> None:
    """Until all train, on all nodes that they get: whoever has a forecast may still wait for its workers."""
    for number in range(jobs):
        facts = {"work": WORK, "samples_per_s": 50.0}
        spec = JobSpec(name=f"job{number}", argv=("x",), cwd="/", min_workers=1, max_workers=nodes // jobs, **facts)  # type: ignore[arg-type]
        cloud.jobs[f"job{number}-1"] = Training(steps=int(WORK), step_s=0.02)
        await api.submit(spec, key=f"key{number}")
    began = time.monotonic()
    while time.monotonic() - began < LONGEST_RAMP_S and _training(await api.jobs()) < jobs:  # noqa: ASYNC110 - with a deadline
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(SETTLES_S)
    views = await api.jobs()
    held, known = len(cloud.nodes), sum(view["eta_s"] is not None for view in views)
    trains = f"{_training(views):,} train, {known:,} with a forecast"
    print(f"{jobs:,} jobs on {held:,} nodes, {trains}; ramp {time.monotonic() - began:.0f} s")


def _training(views: Sequence[JobView]) -> int:
    return sum(view["phase"] == "running" and view["step"] > 0 and view["eta_s"] is not None for view in views)


async def _own_share() -> float:
    """Of a second, what the controller takes for itself."""
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(ALONE_S)
    return (time.process_time() - cpu) / (time.perf_counter() - began)


async def _ask_all(state: StateDir, port: int, jobs: int, last: int) -> dict[str, Figures]:
    paths = {
        "one job by id": [f"/v1/jobs/job{number}-1" for number in range(jobs)],
        "one job by name": [f"/v1/jobs/job{number}" for number in range(jobs)],
        "new events": [f"/v1/events?after={last}"],
        "budget": ["/v1/budget"],
    }
    turns: dict[str, list[Figures]] = {what: [] for what in paths}
    for turn in range(TURNS):
        order = list(paths)[turn % len(paths) :] + list(paths)[: turn % len(paths)]
        for what in order:
            turns[what].append(await _turn(state, port, paths[what]))
    return {what: _median(each[1:]) for what, each in turns.items()}


def _median(turns: Sequence[Figures]) -> Figures:
    per_s, cpu_s, own_s, most_per_s = (median(each) for each in zip(*turns, strict=True))
    return per_s, cpu_s, own_s, most_per_s


async def _turn(state: StateDir, port: int, paths: Sequence[str]) -> Figures:
    own = await _own_share()
    command = (sys.executable, "-m", "benchmarks.reads", ASKER, str(port))
    asker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert asker.stdin is not None
    assert asker.stdout is not None
    asker.stdin.write(json.dumps([state.token(), paths]).encode() + b"\n")
    await asker.stdout.readline()  # it has asked once
    cpu, began = time.process_time(), time.perf_counter()
    asker.stdin.write(b"go\n")
    await asker.stdout.readline()
    passed_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    await asker.wait()
    own_s = max(1e-6, cpu_s - own * passed_s) / ASKED
    return ASKED / passed_s, cpu_s / ASKED, own_s, (1.0 - own) / own_s


def _ask(port: int) -> None:
    """The other process. Several ask at once, so that the server never waits for the next question."""
    token, paths = json.loads(sys.stdin.readline())
    lines = [HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(LINES)]

    def ask(number: int) -> None:
        connection = lines[number % LINES]
        connection.request("GET", paths[number % len(paths)], headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text

    def ask_on(line: int) -> None:
        for number in range(line, ASKED, LINES):
            ask(number)

    for line in range(LINES):
        ask(line)
    print("ready", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(LINES) as pool:
        list(pool.map(ask_on, range(LINES)))
    print("done", flush=True)


def main() -> None:
    """Print the figures and what they should be."""
    if sys.argv[1:2] == [ASKER]:
        _ask(int(sys.argv[2]))
        return
    sizes, alone = [word for word in sys.argv[1:] if word != ALONE], ALONE in sys.argv
    jobs, nodes = (int(size) for size in (*sizes[:2], *("500", "2000")[len(sizes) :]))
    for share in (1,) if alone else (10, 1):
        for what, (per_s, cpu_s, own_s, most_per_s) in measure(jobs // share, nodes // share).items():
            each = f"{cpu_s * 1e3:5.2f} ms of CPU each, {own_s * 1e3:5.2f} ms without the controller's own"
            print(f"  {what:16} {per_s:8,.0f}/s here  {each}: {most_per_s:6,.0f}/s on one core")
    print(f"goal: {GOAL_PER_S:,}/s on one core for single objects, however many there are")


if __name__ == "__main__":
    main()
