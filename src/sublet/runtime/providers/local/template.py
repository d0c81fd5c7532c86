"""The provider's side of the template: it is started and asked for agents, which are watched and ended."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sublet.runtime.agent import processes
from sublet.runtime.agent.template import MOST_REQUEST
from sublet.runtime.private import private_file
from sublet.runtime.providers.local import records
from sublet.runtime.providers.local.nodes import ForkerEnded

__all__ = ["Template", "TemplateForker"]

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
