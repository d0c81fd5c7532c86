"""What open pages cost the controller: `python -m benchmarks.pages [JOBS] [NODES] [PAGES]`.

The real controller, its routes and its server on a socket, with nodes and workers in memory that report as real ones.
For some seconds nobody looks; then another process holds PAGES streams of `/v1/live` open, and a word is put into the
history every second. Printed are the period of a task that wants to run every 50 ms of the controller's loop, with and
without pages, and how long a word takes to each page.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import numpy as np

from benchmarks.reads import fill
from sublet import plugins
from sublet.api.server import bind, serve
from sublet.api.state import StateDir
from sublet.domain.budget import Limit
from sublet.runtime.clock import Clock
from sublet.runtime.controller.history import HistoryRow
from sublet.runtime.controller_api.api import ControllerApi
from sublet.testing.memory_cloud import MemoryCloud, api_over, one_gpu_offer

GOAL_S, GOAL_RATIO = 1.0, 1.1
SECONDS = 15
PERIOD_S = 0.05
LOOKER = "look"
WORD = "a word at "


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
            alone = await _periods()
            command = (sys.executable, "-m", "benchmarks.pages", LOOKER, str(sock.getsockname()[1]), str(pages))
            looker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
            assert looker.stdin is not None
            assert looker.stdout is not None
            looker.stdin.write(state.token().encode() + b"\n")
            await looker.stdout.readline()  # every page has all
            speaking = asyncio.create_task(_speak(api))
            watched = await _periods()
            speaking.cancel()
            looker.stdin.close()
            delays = json.loads(await looker.stdout.readline())
            await looker.wait()
            await api._controller.abandon()  # noqa: SLF001 - a shutdown would save every job first
            await cloud.close()
            await asyncio.gather(running, speaking, return_exceptions=True)
    ratio = float(np.mean(watched) / np.mean(alone))
    before, since = np.mean(alone) * 1e3, np.mean(watched) * 1e3
    print(f"  period of the loop  {before:6.1f} ms alone, {since:6.1f} ms with {pages} pages")
    print(f"  ratio               {ratio:6.2f}   goal at most {GOAL_RATIO:g}")
    print(f"  longest             {max(alone) * 1e3:6.0f} ms alone, {max(watched) * 1e3:6.0f} ms with pages")
    late = np.quantile(delays, 0.95) if delays else float("inf")
    print(f"  a word on a page    {late:6.2f} s p95 of {len(delays)}   goal under {GOAL_S:g} s")


async def _periods() -> list[float]:
    found, until = [], time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < until:
        await asyncio.sleep(PERIOD_S)
        found.append(time.perf_counter() - began)
    return found


async def _speak(api: ControllerApi) -> None:
    while True:
        await asyncio.sleep(1.0)
        api._controller.note(HistoryRow(kind="Word", text=f"{WORD}{time.time()}"))  # noqa: SLF001 - nobody else has words


async def _look(port: int, pages: int, token: str) -> list[float]:
    """The other process: seconds from a word to each page that it came to."""
    delays: list[float] = []
    begun = [asyncio.Event() for _ in range(pages)]

    async def page(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        head = f"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode())
        while line := await reader.readline():
            if line.startswith(b"data: "):
                begun[number].set()
                told = json.loads(line[6:])
                now = time.time()
                delays.extend(
                    now - float(event["text"].removeprefix(WORD))
                    for event in told["events"]
                    if event["text"].startswith(WORD)
                )

    tasks = [asyncio.create_task(page(number)) for number in range(pages)]
    await asyncio.gather(*(each.wait() for each in begun))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    return delays


def main() -> None:
    """The figures and what they should be."""
    if sys.argv[1:2] == [LOOKER]:
        print(json.dumps(asyncio.run(_look(int(sys.argv[2]), int(sys.argv[3]), sys.stdin.readline().strip()))))
        return
    jobs, nodes, pages = (int(a) for a in (*sys.argv[1:4], *("500", "2000", "20")[len(sys.argv) - 1 :]))
    asyncio.run(measure(jobs, nodes, pages))


if __name__ == "__main__":
    main()
