"""The machines of the box: agents forked, watched and ended, with a record of each that outlives the controller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sublet.errors import RentFailed
from sublet.runtime.agent import processes
from sublet.runtime.agent.template import MOST_REQUEST
from sublet.runtime.private import private_file
from sublet.runtime.providers.local import records
from sublet.runtime.providers.local.records import Lives, NodeRecord, Records

BIRTH_S = 10.0  # for an agent to say which process it is, after a crash in the middle of a rent
BIRTH_LOOK_S = 0.002
WRITE_AGAIN_S = 5.0  # after a write for which there was no room
_log = logging.getLogger(__name__)


class ForkerEnded(Exception):
    """It died while it was asked; an agent may have been forked or not."""


class Forker(Protocol):
    """Starts agents on one machine, tells when they end, and ends them."""

    @property
    def lives(self) -> Lives:
        """The agents that live there, of any controller."""

    def start(self) -> None:
        """Get ready, unless it is, without waiting for it."""

    async def warm(self) -> None:
        """Returns when a fork is as quick as it can be."""

    async def fork(self, request: Mapping[str, Any], life: Path) -> None:
        """A new agent, which holds `life` as long as it lives. Raises ForkerEnded, or OSError, as the machine does."""

    def watch(self, pid: int, start: int, died: Callable[[], None]) -> Callable[[], None] | None:
        """Call `died` when this agent ends; how to stop watching. None = it has ended already."""

    async def kill(self, pid: int, start: int) -> bool:
        """End every process of this agent's node; False = some are still there."""

    async def stop(self) -> None:
        """It is needed no longer; agents stay."""


class Nodes:
    """Those in `held` exist, in the order of their rent. When an agent ends, `died` is called with its name."""

    def __init__(self, records: Records, forker: Forker, died: Callable[[str], None]) -> None:
        self.held: dict[str, NodeRecord] = {}
        self.gone: set[str] = set()  # tokens of nodes that existed and do no more
        self.records = records
        self._forker, self._died = forker, died
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._unwritten: set[str] = set()  # names of those whose record is not what is known of them
        self._writing: asyncio.TimerHandle | None = None

    def of(self, offer_id: str) -> list[str]:
        """The names of those that were rented by this offer."""
        return [node_id for node_id, record in self.held.items() if record.offer_id == offer_id]

    async def find_again(self) -> AsyncIterator[NodeRecord]:
        """Every node in the records of an earlier controller: held again if it lives, else cleared away.

        One whose record cannot be read could neither be listed nor given back. If it lives, it is ended before anybody
        hears that it is lost: until then its workers go on.
        """
        for damaged in self.records.damaged():
            record = await self._with_process(damaged)
            await self._kill_all(record)
            if record.pid:
                yield record
        for written in self.records.read():
            record = await self._with_process(written)
            if not record.pid:
                self._forget(record)
                continue
            if self.records.is_alive(record):
                self._write_down(record)
                self.keep(record)
            else:
                self.end(record)
            yield record

    async def fork(self, record: NodeRecord, request: Mapping[str, Any]) -> NodeRecord:
        """Intent, fork, fact. In any case either the node exists and is recorded or neither is."""
        try:
            self.records.write(record)
            with contextlib.suppress(ForkerEnded):  # whether it forked before it died stands in the life file
                await self._forker.fork(request, self.records.path(record.node_id, "life"))
            born = await self._with_process(record)
            if born.pid:
                self.records.write(born)
        except OSError as error:
            born = await self._with_process(record)
            await self._kill_all(born)
            raise RentFailed(record.offer_id, f"it cannot be started: {error}") from error
        if not born.pid:
            self._forget(record)
            raise RentFailed(record.offer_id, "the template ended before it had forked", wait_s=1.0)
        return born

    def keep(self, record: NodeRecord) -> None:
        """It is ours from now on; that its agent has ended already is told at once."""
        self.held[record.node_id] = record
        unwatch = self._forker.watch(record.pid, record.start, lambda: self._died(record.node_id))
        if unwatch is None:
            asyncio.get_running_loop().call_soon(self._died, record.node_id)
        else:
            self._unwatch[record.node_id] = unwatch

    def doom(self, node_id: str, lost_s: float) -> None:
        """Write down when it will be taken, so that a later controller knows."""
        self.held[node_id] = replace(self.held[node_id], lost_s=lost_s)
        self._write_down(self.held[node_id])

    def end(self, record: NodeRecord) -> None:
        """Take all its processes, in the background; its record goes last."""
        self.held.pop(record.node_id, None)
        self._look_away(record.node_id)
        self.gone.add(record.token)
        task = asyncio.get_running_loop().create_task(self._kill_all(record))
        self._endings[record.node_id] = task
        task.add_done_callback(lambda _: self._endings.pop(record.node_id, None))

    async def wait_for_end(self, node_id: str) -> None:
        """Returns when no process of it is left."""
        if (ending := self._endings.get(node_id)) is not None:
            await asyncio.shield(ending)

    async def close(self) -> None:
        """Stop watching; what is held stays."""
        for node_id in [*self._unwatch]:
            self._look_away(node_id)
        if self._writing is not None:
            self._writing.cancel()
        await asyncio.gather(*self._endings.values())

    # ------------------------------------------------------------------

    async def _with_process(self, record: NodeRecord) -> NodeRecord:
        """The record with its process, as soon as the agent has written it down; without one if there is no agent."""
        for _ in range(round(BIRTH_S / BIRTH_LOOK_S)):
            held = self.records.is_held(record.node_id)
            if (found := self.records.with_process(record)).pid or not held:
                return found
            await asyncio.sleep(BIRTH_LOOK_S)
        return record

    def _write_down(self, record: NodeRecord) -> None:
        """Now, or as soon as there is room: whatever is written there, the node is as this says."""
        try:
            self.records.write(record)
            self._unwritten.discard(record.node_id)
        except OSError as error:
            if record.node_id not in self._unwritten:
                _log.warning("what is new about %s cannot be written down yet: %s", record.node_id, error)
            self._unwritten.add(record.node_id)
            if self._writing is None:
                self._writing = asyncio.get_running_loop().call_later(WRITE_AGAIN_S, self._write_again)

    def _write_again(self) -> None:
        self._writing = None
        self._unwritten &= self.held.keys()
        for node_id in sorted(self._unwritten):
            self._write_down(self.held[node_id])

    def _forget(self, record: NodeRecord) -> None:
        """It never was; unless a process still holds its life file, which a later look will find."""
        if not self.records.is_held(record.node_id):
            self.records.remove(record.node_id)

    def _look_away(self, node_id: str) -> None:
        if (unwatch := self._unwatch.pop(node_id, None)) is not None:
            unwatch()

    async def _kill_all(self, record: NodeRecord) -> None:
        if record.pid and record.boot == self.records.boot:
            while not await self._forker.kill(record.pid, record.start):
                _log.warning("processes of %s do not die; it is still held", record.node_id)
        self._forget(record)


RUNS = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")  # each names one run of one job: in the shell of `sublet up`, no job's


class TemplateForker:
    """A `Forker` over one warm process of this machine."""

    def __init__(self, template: Template) -> None:
        self.template = template

    @property
    def lives(self) -> records.Lives:
        """Which agents live here."""
        return records.LIVES

    def start(self) -> None:
        """Without waiting for what the template imports."""
        if not self.template.pid:
            self.template.start()

    async def warm(self) -> None:
        """Wait until the template has imported everything."""
        await self.template.warm()

    async def fork(self, request: Mapping[str, Any], life: Path) -> None:
        """By the template; the life file is locked before it is asked."""
        await self.template.fork(request, records.new_life(life))

    def watch(self, pid: int, start: int, died: Callable[[], None]) -> Callable[[], None] | None:
        """The kernel tells when the process ends."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if not processes.alive(pid, start):
            os.close(pidfd)
            return None
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, died)

        def unwatch() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)

        return unwatch

    async def kill(self, pid: int, start: int) -> bool:
        """In a thread: it waits until none is left."""
        return await asyncio.to_thread(processes.kill_instance, pid, start)

    async def stop(self) -> None:
        """The template ends; its agents stay."""
        await self.template.stop()


class Template:
    """One warm process; requests are answered one after the other."""

    module = "sublet.runtime.agent.template"  # what is started
    env: Mapping[str, str] | None = None  # what it and its agents begin with; None = ours, without RUNS

    def __init__(self, preload: Sequence[str], log: Path) -> None:
        self._preload, self._log = tuple(preload), log
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._ready = False

    @property
    def pid(self) -> int:
        """0 = not started."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Without waiting for what it imports."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", self.module, str(theirs.fileno()), *self._preload]
        inherited = {name: value for name, value in os.environ.items() if name not in RUNS}
        self._log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        private_file(self._log)
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=inherited if self.env is None else self.env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at the terminal is for the controller alone
            )
        ours.settimeout(0.0)
        self._line, self._ready = ours, False

    async def warm(self) -> None:
        """Wait until it has imported everything."""
        if self._line is not None and not self._ready:
            await self._hear(self._line)
            self._ready = True

    async def fork(self, request: Mapping[str, Any], life: int) -> int:
        """A new agent's pid. Takes over `life`, which is closed on this side."""
        try:
            if self._line is None:
                self.start()
            line = self._line
            if line is None:
                raise ForkerEnded("it could not be started")
            if not self._ready:
                await self._hear(line)
                self._ready = True
            try:
                socket.send_fds(line, [json.dumps(request).encode()], [life])
            except OSError as error:
                raise self._end_error() from error
        finally:
            os.close(life)
        while (answer := await self._hear(line)).get("node_id") != request["node_id"]:
            pass  # to a process that no longer waits
        return int(answer["pid"])

    async def stop(self) -> None:
        """Hang up, upon which it ends; its agents stay."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            process, self._process = self._process, None
            if not self._ready:
                process.kill()  # it may be in the middle of an import, and has forked nothing
            try:
                await asyncio.to_thread(process.wait, 5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)

    async def _hear(self, line: socket.socket) -> dict[str, Any]:
        try:
            data = await asyncio.get_running_loop().sock_recv(line, MOST_REQUEST)
        except OSError as error:
            raise self._end_error() from error
        if not data:
            raise self._end_error()
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _end_error(self) -> ForkerEnded:
        """Clear away; the next request starts another."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        return ForkerEnded(f"the template ended; see {self._log}")
