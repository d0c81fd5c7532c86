"""Controllers that slept while another one began on their store, and the law about them.

F    from the moment at which the other has claimed the store, one that slept commits nothing, rents nothing and gives
     nothing back; and once it is awake it ends itself, because it is stale, or because its disk is full: whichever it
     meets first
C    a controller asks for one thing of a node at a time: it gives back no node whose rent is under way, and none twice
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sublet.errors import StaleController
from sublet.runtime.providers.protocol import Billed, Provider, RentedNode, TellMarket
from sublet_lab.world.disk import Disk
from sublet_lab.world.heap import Crash, Process
from sublet_lab.world.loop import LoopProcess

ENDS_WITHIN_S = 5.0  # of waking up: a tick, and a second for slow ones


class WatchedProvider:
    """As one controller sees it; its callers are counted."""

    def __init__(self, real: Provider, process: LoopProcess, fence: Fence) -> None:
        self._real, self._process, self._fence = real, process, fence

    async def open(self, tell: TellMarket) -> None:
        """As the real one."""
        with self._fence.call(self._process):
            await self._real.open(tell)

    async def list(self) -> list[RentedNode]:
        """As the real one."""
        with self._fence.call(self._process):
            return await self._real.list()

    async def rent(self, node_id: str, offer_id: str, token: str) -> None:
        """As the real one."""
        self._fence.renting[self._process.pid, node_id] += 1
        with self._fence.asking("rent", self._process, node_id):
            await self._real.rent(node_id, offer_id, token)
        self._fence.renting[self._process.pid, node_id] -= 1

    async def release(self, node_id: str) -> Billed | None:
        """As the real one."""
        with self._fence.asking("release", self._process, node_id):
            return await self._real.release(node_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@dataclass
class Slept:
    """One of them."""

    process: LoopProcess
    running: asyncio.Task[None]
    life: int  # which controller of this store it is
    done: tuple[int, int] = (0, 0)  # commits and calls, when the other had claimed the store
    since_s: float | None = None  # ... and when that was


class Fence:
    """The fence of one world."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.calls: Counter[int] = Counter()  # of providers, by process
        self.renting: Counter[tuple[int, str]] = Counter()  # calls under way, by process and node
        self.late: set[str] = (
            set()
        )  # nodes that one of them had asked for when it fell asleep: that cannot be taken back
        self.slept: list[Slept] = []
        self.crossed = ""  # two calls about one node that one controller made at once: the first ones
        self._asking: dict[tuple[int, str], str] = {}  # by process and node: the call that is under way
        self.called = 0  # whatever of providers, by anybody
        self.under_way: set[int] = set()  # of these, by number: those that are not answered yet
        self._crash_in: tuple[int, bool] | None = None  # (calls from now, before it)
        self.on_crash: Callable[[Process], None] = lambda process: process.kill()

    def crash_in(self, calls: int, *, before: bool) -> None:
        """The maker of that call is gone, before it or once it is answered."""
        self._crash_in = (calls, before)

    def calm(self) -> None:
        """No crash is due."""
        self._crash_in = None

    @contextmanager
    def call(self, process: Process) -> Iterator[None]:
        """A call of a provider, or its caller's end."""
        number, self.called = self.called, self.called + 1
        if self._crash_in == (number, True):
            self._crash(process)
        self.under_way.add(number)
        try:
            yield
        finally:
            self.under_way.discard(number)
        if self._crash_in == (number, False):
            self._crash(process)

    @contextmanager
    def asking(self, what: str, process: Process, node_id: str) -> Iterator[None]:
        """A call about one node, which changes something."""
        self.calls[process.pid] += 1
        if (other := self._asking.get((process.pid, node_id))) and not self.crossed:
            self.crossed = f"{what} {node_id} is asked for while {other} {node_id} is under way"
        self._asking[process.pid, node_id] = what
        try:
            with self.call(process):
                yield
        finally:
            self._asking.pop((process.pid, node_id), None)

    def _crash(self, process: Process) -> None:
        self._crash_in = None
        self.on_crash(process)
        raise Crash

    def sleep(self, process: LoopProcess, running: asyncio.Task[None]) -> None:
        """This one does, and another one will begin."""
        self.slept.append(Slept(process, running, self._life()))
        self.late |= {node_id for (pid, node_id), calls in self.renting.items() if pid == process.pid and calls}

    def _life(self) -> int:
        return int(self._disk.rows("SELECT value FROM meta WHERE key = 'life'")[0][0])

    def complaint(self, now_s: float) -> str:
        """The forbidden act of one of them; "" if they all keep still."""
        for slept in list(self.slept):
            if slept.process.dead:
                self.slept.remove(slept)
            elif self._life() > slept.life and (why := self._judge(slept, now_s)):
                return why
        return ""

    def _judge(self, slept: Slept, now_s: float) -> str:
        process = slept.process
        done = (self._disk.commits_of[process.pid], self.calls[process.pid])
        if slept.since_s is None:
            slept.since_s, slept.done = now_s, done
        if done != slept.done:
            return f"controller {slept.life} was succeeded, and still commits or calls: {slept.done} -> {done}"
        if slept.running.done():
            error = None if slept.running.cancelled() else slept.running.exception()
            process.kill()
            full = self._disk.was_full and "disk is full" in str(error)
            return "" if full or isinstance(error, StaleController) else f"controller {slept.life} ended of {error!r}"
        if now_s > max(process.stopped_until_s, slept.since_s) + ENDS_WITHIN_S:
            return f"controller {slept.life} was succeeded, is awake and lives on"
        return ""
