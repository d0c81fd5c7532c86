"""A process that was forked before the agent knew any secret: workers begin as copies of it, warm and ignorant.

It imports what they begin with (torch takes seconds) while the agent finds its controller and files travel.

A worker that is a fork of the agent has the agent's memory, and with it the node's key, whatever user it becomes. So
each is born here, by a process in between that ends at once: an orphan then, it comes to the agent, which adopts them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sublet.machine.wall import WALL
from sublet.runtime.agent.processes import die_with_parent, rename
from sublet.runtime.agent.users import User
from sublet.wire.lines import from_line, to_line
from sublet.wire.messages import StartWorker

# What is not installed is left out. The first optimizer of a script imports torch._dynamo: seconds, unless it is there.
PRELOAD = ("torch", "torch._dynamo", "torch.utils.data", "sublet.train.sessions.copies", "sublet.train.grid.in_stages")
NUMBER = struct.Struct("q")  # a length, a pid, or an error less than 0
ANSWERS_S = 30.0  # far more than two forks take
ADOPTED_S = 10.0
IMPORTS_S = 600  # what takes longer hangs: the nursery ends, and workers are told so
READY = 0  # its first word
_Begin = Callable[[StartWorker, Mapping[str, str], int, int, int, User | None], None]


def import_all(names: Sequence[str]) -> None:
    """A failed import is left to the workers that need it, which say why. Only forks come after it."""
    gc.disable()  # of what is imported nothing is garbage: to look for it takes a tenth of the time
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a library does when it is imported
            print(f"not preloaded: {name}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the parent
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page


class Nursery:
    """The agent's end of the line to it."""

    def __init__(self, begin: _Begin, preload: Sequence[str] = ()) -> None:
        """Fork it now; a child of it does `begin` (order, variables, log, control line, agent, user), for good."""
        self.ready = not preload  # it has imported what it can, or has ended
        self._line, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        if os.fork() == 0:
            self._line.close()
            _serve(theirs, agent, begin, preload)
        theirs.close()
        self._line.settimeout(ANSWERS_S)

    def fileno(self) -> int:
        """The descriptor that a loop waits for until it is `ready`."""
        return self._line.fileno()

    def attend(self, _: int = 0) -> None:
        """Its first word; where there is none, `start` says why."""
        with contextlib.suppress(OSError):
            _exactly(self._line, NUMBER.size)
        self.ready = True

    def start(self, order: StartWorker, own_env: Mapping[str, str], log: int, control: int, user: User | None) -> int:
        """The pid of a worker that is ours; OSError where there is none. It waits where it is not `ready`."""
        if not self.ready:
            self.attend()
        facts = {
            "order": to_line(order).decode(),
            "env": dict(own_env),
            "user": None if user is None else [user.number, str(user.home)],
        }
        request = json.dumps(facts).encode()
        socket.send_fds(self._line, [NUMBER.pack(len(request))], [log, control])
        self._line.sendall(request)
        (pid,) = NUMBER.unpack(_exactly(self._line, NUMBER.size))
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)


def _exactly(line: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        if not (more := line.recv(length - len(data))):
            raise OSError("the process that workers come from has ended")
        data += more
    return data


def _serve(line: socket.socket, agent: int, begin: _Begin, preload: Sequence[str]) -> None:
    try:
        die_with_parent()
        rename("sublet-nursery")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it ends with the agent
        if preload:
            signal.alarm(IMPORTS_S)
            import_all(preload)
            signal.alarm(0)
            line.sendall(NUMBER.pack(READY))
        while os.getppid() == agent:
            header, descriptors, _, _ = socket.recv_fds(line, NUMBER.size, 2)
            if not header:
                break
            facts = json.loads(_exactly(line, NUMBER.unpack(header)[0]))
            _bear(line, facts, descriptors, agent, begin)
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(0)


def _bear(line: socket.socket, facts: dict[str, Any], descriptors: list[int], agent: int, begin: _Begin) -> None:
    try:
        between = os.fork()
    except OSError as error:
        line.sendall(NUMBER.pack(-(error.errno or 1)))
        return
    if between:
        os.waitpid(between, 0)
        return
    try:
        born = os.fork()
    except OSError as error:
        line.sendall(NUMBER.pack(-(error.errno or 1)))
        os._exit(0)
    if born:
        line.sendall(NUMBER.pack(born))
        os._exit(0)
    _grow(facts, descriptors, agent, begin)


def _grow(facts: dict[str, Any], descriptors: list[int], agent: int, begin: _Begin) -> None:
    """The worker, once it is the agent's."""
    try:
        ends_s = WALL.monotonic() + ADOPTED_S
        while os.getppid() != agent and WALL.monotonic() < ends_s:
            os.sched_yield()
        order = from_line(facts["order"].encode())
        user = None if facts["user"] is None else User(facts["user"][0], Path(facts["user"][1]))
        if isinstance(order, StartWorker):
            begin(order, facts["env"], descriptors[0], descriptors[1], agent, user)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1)
