"""Real training workers without a controller: forks processes that run a script, and orders them over their lines.

Plays agent and controller over socket pairs. Import what the script needs (torch, above all) before a `World` is made:
workers are forked from this process, which must have it imported and must never have used it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from sublet.domain.shards import ranges_for
from sublet.wire.lines import LineBuffer, to_line
from sublet.wire.messages import (
    SHARDS,
    Broke,
    Finished,
    Joined,
    Leading,
    Leave,
    Meet,
    Ready,
    Regroup,
    Stepped,
    ToWorker,
)

LATEST_S = 120.0  # any single wait in a scenario


class Forked:
    """A forked process and our end of its line."""

    def __init__(self, name: str, pid: int, connection: socket.socket) -> None:
        self.name, self.pid, self.connection, self.lines = name, pid, connection, LineBuffer()
        self.ready = self.joined = False
        self.heard: list[tuple[float, object]] = []
        self.code: int | None = None

    def say(self, message: ToWorker) -> None:
        """An order, which may come too late."""
        with contextlib.suppress(OSError):  # it may be dead
            self.connection.sendall(to_line(message))


class World:
    """Workers that all run `script(directory)`."""

    def __init__(self, script: Callable[[Path], None], directory: Path, **env: str) -> None:
        self.script, self.directory, self.env = script, directory, env
        self.generation = 0
        self.micro_batch = self.batch = 0  # that all orders carry; 0 = none
        self.keep = 0  # workers that hold each range of the optimizer's state; 0 = everybody holds all of it
        self.forgives = False  # a group that says it broke while all are there is told to regroup: one was late
        self.workers: list[Forked] = []
        self.members: list[Forked] = []
        self.told_to_leave: set[str] = set()
        self.messages: list[tuple[float, str, object]] = []
        self._selector = selectors.DefaultSelector()

    # ---------------------------------------------------------------------------------- orders

    def start(self, count: int) -> list[Forked]:
        """Fork so many more."""
        return [self._fork() for _ in range(count)]

    def regroup(self, members: list[Forked], *, broken: bool = False, save: bool = False) -> float:
        """Order the members into a new generation and all others out; when it was said."""
        self.generation += 1
        leavers = [worker for worker in self.members if worker not in members and worker.code is None]
        self.members = list(members)
        said_s = time.monotonic()
        for rank, worker in enumerate(members):
            order = Regroup(
                worker_id=worker.name,
                generation=self.generation,
                rank=rank,
                world=len(members),
                broken=broken,
                batch=self.batch,
                micro_batch=self.micro_batch,
                cut=SHARDS if self.keep else "",
                parts=ranges_for(len(members), self.keep) if self.keep else 1,
            )
            worker.say(order)
        for worker in leavers:
            self.told_to_leave.add(worker.name)
            worker.say(Leave(worker_id=worker.name, generation=self.generation, broken=broken, save=save))
        return said_s

    def kill(self, worker: Forked, number: int = signal.SIGKILL) -> None:
        """A signal, unless it has ended."""
        if worker.code is None:
            os.kill(worker.pid, number)

    # ---------------------------------------------------------------------------------- time goes by

    def until(self, reached: Callable[[], bool], what: str, *, watch: bool = True, wait_s: float = LATEST_S) -> None:
        """Let things happen; a member that dies unasked breaks the group, and the others are ordered to regroup."""
        ends_s = time.monotonic() + wait_s
        while not reached():
            if time.monotonic() > ends_s:
                state = [(w.name, w.code, [str(m)[:150] for _, m in w.heard[-2:]]) for w in self.workers]
                for worker in self.workers:
                    self.kill(worker, signal.SIGUSR1)
                time.sleep(0.5)
                said = "".join(f"\n{path.name}: {path.read_text()}" for path in sorted(self.directory.glob("*.err")))
                raise TimeoutError(f"{what}: {state}{said}")
            self._listen(0.02)
            dead = self._reap()
            if watch and (dead or (self.forgives and self._is_broken())) and not self.finished:
                self.regroup([member for member in self.members if member.code is None], broken=True)

    def run_for(self, seconds: float) -> None:
        """Let things happen for a while."""
        ends_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= ends_s or self.finished, "time")

    def until_ready(self, workers: list[Forked]) -> None:
        """Until each waits for a group, or has ended."""
        self.until(lambda: all(worker.ready or worker.code is not None for worker in workers), "ready")

    def until_joined(self) -> None:
        """Until all members are in the newest group."""
        self.until(lambda: self.finished or self.joined_all(), "joined")

    def until_step(self, step: int) -> None:
        """Until one has made this step."""
        self.until(lambda: self.finished or max(self.heard_steps(), default=-1) >= step, f"step {step}")

    def until_over(self) -> None:
        """Finished; members exit by themselves, one that still waits for a group is ended."""
        self.until(lambda: self.finished, "finished")
        self.until(
            lambda: all(member.code is not None for member in self.members if member.joined), "exits", watch=False
        )
        self.end()

    def _is_broken(self) -> bool:
        """Whether all members have said so of the newest group."""
        said = [member.heard[-1][1] for member in self.members if member.heard]
        broke = [each for each in said if isinstance(each, Broke) and each.generation == self.generation]
        return 0 < len(broke) == len(self.members)

    @property
    def finished(self) -> bool:
        """Whether training has come to its end."""
        return any(isinstance(message, Finished) for _, _, message in self.messages)

    def joined_all(self) -> bool:
        """Whether all members are in the newest group."""
        names = {
            name for _, name, said in self.messages if isinstance(said, Joined) and said.generation == self.generation
        }
        return names == {member.name for member in self.members}

    def heard_steps(self) -> list[int]:
        """Every step that was told."""
        return [said.step for _, _, said in self.messages if isinstance(said, Stepped | Joined)]

    def end(self) -> None:
        """Kill the rest."""
        for worker in self.workers:
            self.kill(worker)
        self.until(lambda: all(worker.code is not None for worker in self.workers), "the end", watch=False)

    def codes(self) -> dict[str, int | None]:
        """Exit codes by worker."""
        return {worker.name: worker.code for worker in self.workers}

    def _fork(self) -> Forked:
        name = f"w{len(self.workers)}"
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ours.close()
                for other in self.workers:
                    other.connection.close()
                theirs.set_inheritable(True)
                os.environ.update(self.env, SUBLET_CONTROL_FD=str(theirs.fileno()), SUBLET_WORKER_ID=name)
                with (self.directory / f"{name}.err").open("a") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                faulthandler.register(signal.SIGUSR1)  # where it hangs, for a scenario that takes too long
                self.script(self.directory)
                code = 0
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 1
            except BaseException:  # noqa: BLE001 - a child must never run on into the parent's code
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        theirs.close()
        worker = Forked(name, pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self.workers.append(worker)
        return worker

    def _listen(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            worker = key.data
            try:
                data = worker.connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(worker.connection)
                worker.connection.close()
                continue
            for message in worker.lines.feed(data):
                self._hear(worker, message)

    def _hear(self, worker: Forked, message: object) -> None:
        now_s = time.monotonic()
        worker.heard.append((now_s, message))
        self.messages.append((now_s, worker.name, message))
        if isinstance(message, Ready):
            worker.ready = True
        if isinstance(message, Joined):
            worker.joined = True
        if isinstance(message, Leading) and message.generation == self.generation:
            for member in self.members[1:]:
                place = Meet(worker_id=member.name, generation=message.generation, host=message.host, port=message.port)
                member.say(place)

    def _reap(self) -> list[Forked]:
        """Members that have ended without having been told to."""
        found = []
        for worker in self.workers:
            if worker.code is None:
                pid, status = os.waitpid(worker.pid, os.WNOHANG)
                if pid:
                    worker.code = os.waitstatus_to_exitcode(status)
                    if worker in self.members:
                        found.append(worker)
        return found
