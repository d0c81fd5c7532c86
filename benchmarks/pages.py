"""What open pages cost the controller: `python -m benchmarks.pages [JOBS] [NODES] [PAGES]`.

The real controller, its routes and its server on a socket, with nodes and workers in memory that report as real ones.
Some seconds nobody looks; then, for as long, another process holds PAGES streams of `/v1/live` open; and that by turns.
All the time a word is put into the history every second, and a node is noticed every few seconds. Printed are the
period of a task that wants to run every 50 ms of the controller's loop, and this process's CPU time, with and without
pages; how long all takes to each page as they open at once, and a word, and a notice, to each that is open.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.reads import fill
from sublet import plugins
from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.watch.history import HistoryRow
from sublet.runtime.controller_api.api import ControllerApi
from sublet_lab.memory_cloud import MemoryCloud, api_over, one_gpu_offer

GOAL_S, GOAL_RATIO = 1.0, 1.1
SECONDS, ROUNDS = 8, 3
NOTICE_EVERY_S, TAKEN_IN_S = 2.0, 3600.0  # wall, and cloud
PERIOD_S = 0.05
LOOKER = "look"
WORD = "a word at "
SPOKEN = re.compile(rf'"text": "{WORD}([0-9.]+)"'.encode())
NOTICED = re.compile(rb'"kind": "NodeNoticed", "job_id": "[^"]*", "node_id": "([^"]+)"')


async def measure(jobs: int, nodes: int, pages: int) -> None:
    """Print the figures of one run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cloud = MemoryCloud(
            [one_gpu_offer("spot", hazard_per_h=0.01), one_gpu_offer("on-demand", 1.5)], Clock(speedup=60.0)
        )
        limits = {"spot": Limit(max_nodes=nodes), "on-demand": Limit(max_nodes=nodes // 10)}
        state = StateDir(folder / "state")
        state.prepare()
        policy = plugins.load("sublet.policies", "equal")()  # type: ignore[operator]
        with api_over(cloud, state.path, policy, limits=limits) as api:
            sock = bind("127.0.0.1", 0)
            running = asyncio.create_task(serve(api, api.run, state=state, sock=sock, pid=0, signals=False))
            await api.started()
            await fill(api, cloud, jobs, nodes)
            happening = asyncio.create_task(_happen(api, cloud, warned := {}))
            found = _Found()
            for _ in range(ROUNDS):
                await _measure_both(found, state, sock.getsockname()[1], pages, warned)
            happening.cancel()
            await api._controller.abandon()  # noqa: SLF001 - a shutdown would save every job first
            await cloud.close()
            await asyncio.gather(running, happening, return_exceptions=True)
    found.tell(pages)


@dataclass(slots=True)
class _Found:
    """Of all rounds."""

    alone: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    cpu_alone_s: float = 0.0
    cpu_watched_s: float = 0.0
    words: list[float] = field(default_factory=list)
    notices: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)

    def tell(self, pages: int) -> None:
        """What was measured, and what it should be."""
        ratio = float(np.mean(self.watched) / np.mean(self.alone))
        before, since = np.mean(self.alone) * 1e3, np.mean(self.watched) * 1e3
        of_s = SECONDS * ROUNDS
        most, most_watched = max(self.alone) * 1e3, max(self.watched) * 1e3
        cpu, cpu_watched = self.cpu_alone_s / of_s, self.cpu_watched_s / of_s
        print(f"  period of the loop  {before:6.1f} ms alone, {since:6.1f} ms with {pages} pages")
        print(f"  ratio               {ratio:6.2f}   goal at most {GOAL_RATIO:g}")
        print(f"  longest             {most:6.0f} ms alone, {most_watched:6.0f} ms with pages")
        print(f"  CPU                 {cpu:6.3f} s a second alone, {cpu_watched:6.3f} s with pages")
        print(
            f"  all of it on a page {np.quantile(self.opening, 0.95):6.2f} s p95 of {len(self.opening)}, opened at once"
        )
        for what, delays in (("a word on a page", self.words), ("a notice on a page", self.notices)):
            late = np.quantile(delays, 0.95) if delays else float("inf")
            print(f"  {what:19} {late:6.2f} s p95 of {len(delays)}   goal under {GOAL_S:g} s")


async def _measure_both(found: _Found, state: StateDir, port: int, pages: int, warned: Mapping[str, float]) -> None:
    cpu = time.process_time()
    found.alone += await _periods()
    found.cpu_alone_s += time.process_time() - cpu
    command = (sys.executable, "-m", "benchmarks.pages", LOOKER, str(port), str(pages))
    looker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 24)
    assert looker.stdin is not None
    assert looker.stdout is not None
    looker.stdin.write(state.token().encode() + b"\n")
    await looker.stdout.readline()  # every page has all
    cpu = time.process_time()
    found.watched += await _periods()
    found.cpu_watched_s += time.process_time() - cpu
    looker.stdin.close()
    words, notices, opening = json.loads(await looker.stdout.readline())
    await looker.wait()
    found.words += words
    found.opening += opening
    found.notices += [seen - warned[each] for each, opened, seen in notices if warned.get(each, 0.0) > opened]


async def _periods() -> list[float]:
    found, until = [], time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < until:
        await asyncio.sleep(PERIOD_S)
        found.append(time.perf_counter() - began)
    return found


async def _happen(api: ControllerApi, cloud: MemoryCloud, warned: dict[str, float]) -> None:
    """A word every second, a notice every few."""
    began = time.perf_counter()
    while True:
        await asyncio.sleep(1.0)
        api._controller.note(HistoryRow(kind="Word", text=f"{WORD}{time.time()}"))  # noqa: SLF001 - nobody else has words
        if time.perf_counter() - began > NOTICE_EVERY_S:
            began = time.perf_counter()
            node_id = next(node.id for node in cloud.nodes.values() if node.id not in warned and node.workers)
            warned[node_id] = time.time()
            cloud.warn(node_id, TAKEN_IN_S)


async def _look(port: int, pages: int, token: str) -> tuple[list[float], list[tuple[str, float, float]], list[float]]:
    """The other process: seconds from a word to each page that was open; which notice came when; seconds to open."""
    delays: list[float] = []
    notices: list[tuple[str, float, float]] = []
    opened, asked = [0.0] * pages, time.time()
    begun = [asyncio.Event() for _ in range(pages)]

    async def page(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        head = f"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode())
        while line := await reader.readline():
            if line.startswith(b"data: "):  # whoever has twenty pages has no twenty processors: none is read as a whole
                now = time.time()
                if not begun[number].is_set():
                    opened[number] = now
                    begun[number].set()
                spoken = [float(each) for each in SPOKEN.findall(line)]
                delays.extend(now - each for each in spoken if each > opened[number])
                notices.extend((node_id.decode(), opened[number], now) for node_id in NOTICED.findall(line))

    tasks = [asyncio.create_task(page(number)) for number in range(pages)]
    await asyncio.gather(*(each.wait() for each in begun))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    return delays, notices, [each - asked for each in opened]


def main() -> None:
    """The figures and what they should be."""
    if sys.argv[1:2] == [LOOKER]:
        print(json.dumps(asyncio.run(_look(int(sys.argv[2]), int(sys.argv[3]), sys.stdin.readline().strip()))))
        return
    jobs, nodes, pages = (int(a) for a in (*sys.argv[1:4], *("500", "2000", "20")[len(sys.argv) - 1 :]))
    asyncio.run(measure(jobs, nodes, pages))


if __name__ == "__main__":
    main()
