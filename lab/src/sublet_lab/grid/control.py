"""The controller of grids of real processes: starts workers, passes on where they meet, hears of deaths."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from sublet.domain.shape import Grid
from sublet.wire.lines import LineBuffer, Message, to_line
from sublet.wire.messages import Joined, Leading, Leave, Meet, Ready, Regroup, Stepped
from sublet_lab.grid.worker import Fault, Kept, Worker

LIMIT_S = 120.0
LOOK_S = 0.05  # what is waited for may come without a word of a worker

Life = Callable[[str, socket.socket, int, Kept | None], None]  # of a script: name, line, a pipe for what it came to


class Stuck(Exception):
    """An awaited event did not come."""


class Process:
    """A worker, as its parent sees it."""

    def __init__(
        self, name: str, steps: int, faults: tuple[Fault, ...], life: Life | None, kept: Kept | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        reads, writes = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            ours.close()
            os.close(reads)
            code = 1
            try:
                if life is not None:
                    life(name, theirs, writes, kept)
                else:
                    Worker(name, theirs, writes, steps, faults, kept).live()
                code = 0
            except BaseException:  # noqa: BLE001 - a child must never go on in its parent's code
                traceback.print_exc()
            os._exit(code)
        theirs.close()
        os.close(writes)
        self.name, self.connection, self.facts_from = name, ours, reads
        self.lines, self.said, self.alive = LineBuffer(), list[Message](), True
        self.facts: dict[str, Any] = {}
        self.ends = os.pidfd_open(self.pid)

    def tell(self, message: Message) -> None:
        """One that is gone hears nothing."""
        try:
            self.connection.sendall(to_line(message))
        except OSError:
            return


class Control:
    """For a `with` statement: no worker outlives it. They live as members, or as `life` has it."""

    def __init__(
        self, steps: int, life: Life | None = None, *, kept: Kept | None = None, limit_s: float = LIMIT_S
    ) -> None:
        self.steps, self.generation, self._life, self._kept, self._limit_s = steps, 0, life, kept, limit_s
        self.processes: list[Process] = []
        self.members: list[Process] = []
        self._there: list[Process] = []  # of the present meeting
        self.losses: dict[int, set[float]] = {}
        self.joined_s: dict[int, float] = {}  # of each generation: when the last said so
        self.grids: dict[int, Grid] = {}
        self.joined: list[Joined] = []
        self.died_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.processes:
            if each.alive:
                os.kill(each.pid, signal.SIGKILL)
                os.waitpid(each.pid, 0)
            for descriptor in (each.ends, each.facts_from):
                os.close(descriptor)
            each.connection.close()

    def start(self, name: str, *faults: Fault) -> Process:
        """A worker that is not in any grid yet."""
        found = Process(name, self.steps, faults, self._life, self._kept)
        self.processes.append(found)
        return found

    def order(
        self,
        members: Sequence[Process],
        grid: Grid,
        *,
        givers: Sequence[Process] = (),
        keeps: Sequence[tuple[int, ...]] = (),
        broken: bool = False,
    ) -> None:
        """These are the grid, by their seats; those behind only keep. Parts that each keeps are in `keeps`."""
        self.wait(lambda: all(not each.alive or _is_ready(each) for each in members))
        self.generation += 1
        self.grids[self.generation] = grid
        self.members, self._there = list(members), [*members, *givers]
        for number, process in enumerate(self._there):
            stays = number < len(members)
            copy, part = divmod(number, grid.parts) if number < grid.gpus else (-1, -1)
            process.tell(
                Regroup(
                    worker_id=process.name,
                    generation=self.generation,
                    rank=number if stays else -1,
                    world=len(members),
                    broken=broken,
                    copy=copy,
                    part=part,
                    copies=grid.copies,
                    parts=grid.parts,
                    cut="stages",
                    keeps=keeps[number] if number < len(keeps) else (),
                    meeting=number,
                    meets=len(self._there),
                    stays=stays,
                )
            )

    def until_death(self) -> list[Process]:
        """A needed worker is gone; all of these."""
        self.wait(lambda: any(not each.alive for each in self._there))
        return [each for each in self._there if not each.alive]

    def until_steps(self, steps: int) -> None:
        """All members have applied so many (scripts: as the first one reports), or one is gone."""
        enough = all if self._life is None else any
        self.wait(
            lambda: (
                any(not each.alive for each in self._there) or enough(_steps(each) >= steps for each in self.members)
            )
        )

    def until_joined(self) -> None:
        """All members have, or one is gone."""
        self.wait(
            lambda: (
                any(not each.alive for each in self._there)
                or all(_has_joined(each, self.generation) for each in self.members)
            )
        )

    def leave(self, *, save: bool = False) -> None:
        """Everybody, and what they have trained is known. To save it, all that are left meet."""
        self.generation += 1
        self._there = [each for each in self.processes if each.alive] if save else []
        for number, each in enumerate(each for each in self.processes if each.alive):
            each.tell(
                Leave(
                    worker_id=each.name,
                    generation=self.generation,
                    save=save,
                    meeting=number,
                    meets=len(self._there),
                )
            )
        self.wait(lambda: not any(each.alive for each in self.processes))

    def wait(self, until: Callable[[], bool]) -> None:
        """Hear what is said meanwhile."""
        ends_s = time.monotonic() + self._limit_s
        while not until():
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                seen = [f"{each.name} {'' if each.alive else 'dead '}{each.said[-1:]}" for each in self.processes]
                raise Stuck(f"generation {self.generation}: {seen}")
            living = [each for each in self.processes if each.alive]
            ready, _, _ = select.select(
                [each.connection for each in living] + [each.ends for each in living], [], [], min(left_s, LOOK_S)
            )
            for each in living:
                if each.connection in ready:
                    self._hear(each)
            for each in living:
                if each.ends in ready:
                    self._bury(each)

    def _hear(self, process: Process) -> None:
        try:
            data = process.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except OSError:
            return
        for message in process.lines.feed(data):
            process.said.append(message)
            if isinstance(message, Leading) and message.generation == self.generation:
                for each in self._there:
                    each.tell(
                        Meet(worker_id=each.name, generation=message.generation, host=message.host, port=message.port)
                    )
            elif isinstance(message, Joined):
                self.joined.append(message)
                self.joined_s[message.generation] = time.monotonic()
            elif isinstance(message, Stepped):
                self.losses.setdefault(message.step, set()).add(message.loss)

    def _bury(self, process: Process) -> None:
        while select.select([process.connection], [], [], 0)[0]:
            before = len(process.said)
            self._hear(process)
            if len(process.said) == before:
                break
        os.waitpid(process.pid, 0)
        process.alive, self.died_s = False, time.monotonic()
        text = os.read(process.facts_from, 1 << 16)
        process.facts = json.loads(text) if text else {}


def _is_ready(process: Process) -> bool:
    return any(isinstance(message, Ready) for message in process.said)


def _has_joined(process: Process, generation: int) -> bool:
    return any(isinstance(message, Joined) and message.generation == generation for message in process.said)


def _steps(process: Process) -> int:
    return max((message.step for message in process.said if isinstance(message, Joined | Stepped)), default=0)
