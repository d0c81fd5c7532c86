"""A group of workers that reduce gradients together, formed without torchrun and ended from outside.

A collective whose peer is gone waits for its time-out, and nothing in torch wakes it. What wakes it is the end of its
connections: `hang_up` shuts every socket that the group has opened. The collective then raises within milliseconds,
here and, because their connections end too, in all other members.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sublet.train.devices import NCCL, agreed_backend, device_name
from sublet.train.following import Broken
from sublet.wire.messages import Meet

__all__ = ["BROKEN", "PeerGroup", "gist_of", "talking"]

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # as torch's own; a dead member is noticed long before
LOOK_S = 0.5  # for the store to answer; then look whether it is still wanted, and try again
CONNECT = timedelta(seconds=60)  # once it answers: torch looks up names on the way, which takes seconds without a DNS
SLICE = timedelta(seconds=0.1)  # of waiting, between looks at whether it still makes sense
STUCK_S = 0.3  # from hanging up until a collective that has not noticed never will; the others take milliseconds
BROKEN = (RuntimeError, ValueError)  # what a collective raises whose group is gone (ValueError: already destroyed)
CPU = torch.device("cpu")
DESCRIPTORS = Path("/proc/self/fd")
LONGEST_GIST = 300  # characters of a line


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Around collectives alone, so that an error of the user's code is never taken for a broken group."""
    try:
        yield
    except BROKEN as error:
        raise Broken(gist_of(error)) from error


class PeerGroup:
    """Rank `rank` of `world`; of one alone there is no torch group at all.

    `device` is the one that we train on. What is `async` here blocks (`following.at_once`).
    """

    def __init__(self, *, rank: int = 0, world: int = 1, generation: int = 0, device: torch.device = CPU) -> None:
        self.rank, self.world, self.generation = rank, world, generation
        self._device = device
        self.stuck = False  # something of it will never end
        self._store: Any = None
        self._nccl = False
        self._before = _sockets()
        self._mine: dict[int, str] | None = None  # by descriptor, once the group is formed
        self._hung_up_s: float | None = None

    async def lead(self) -> tuple[str, int]:
        """Open the store where all meet; its host and port."""
        host = _own_host()
        listening = socket.create_server((host, 0))  # handed to the store, which would listen on every interface
        port = listening.getsockname()[1]
        descriptor = listening.detach()
        with talking():
            self._store = self._in_a_thread(lambda: _open_store(host, port, descriptor))
        return host, port

    async def find(self, meet: Meet, check: Callable[[], None]) -> None:
        """Reach the store of another, which may be gone already: then `check` raises some day."""
        _own_host()
        check()
        while not _answers(meet):
            check()
        with talking():
            self._store = self._in_a_thread(lambda: _open_store(meet.host, meet.port))

    async def form(self) -> None:
        """Make the torch group with all who are at the store."""
        on_error = sys.excepthook
        store, device = self._store, device_name(self._device)
        with talking():
            backend = self._in_a_thread(lambda: _make_torch_group(store, self.rank, self.world, device))
        self._nccl = backend == NCCL
        sys.excepthook = on_error  # torch puts one more around it each time
        self._mine = {fd: name for fd, name in _sockets().items() if self._before.get(fd) != name}

    async def numbers(self, mine: int) -> list[int]:
        """What each member says, by rank."""
        if self.world == 1:
            return [mine]
        table = torch.zeros(self.world, dtype=torch.int64)
        table[self.rank] = mine
        with talking():
            self.all_reduce(table)
        found: list[int] = table.tolist()
        return found

    async def part(self) -> None:
        """Nobody hangs up before the last has heard the last sum."""
        with contextlib.suppress(*BROKEN):
            self.all_reduce(torch.zeros(1))

    def wait(self, work: Any) -> None:
        """Until the collective is over; one of BROKEN if it fails, or never ends after we have hung up.

        Gloo can lose the news that a connection has ended: a message that it was about to answer when the answer
        failed is not told of it, and its collective waits on. Seen about once in a hundred kills.
        """
        if self._nccl:
            work.wait()  # waits on the stream alone
            return
        while True:
            try:
                work.wait(SLICE)
                return
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                if work.is_completed():  # between the end of our patience and this look: how, it says now
                    work.wait(SLICE)
                    return
                self._give_up_if_stuck()

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the members, in place."""
        self.wait(dist.all_reduce(tensor, async_op=True))

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """What `source` has, to all."""
        self.wait(dist.broadcast(tensor, source, async_op=True))

    def hang_up(self) -> None:
        """End every connection of the group; any thread may call this, and more than once."""
        if self._hung_up_s is None:
            self._hung_up_s = time.monotonic()
        mine = self._mine
        if mine is None:
            mine = {fd: name for fd, name in _sockets().items() if self._before.get(fd) != name}
        for fd, name in mine.items():
            with contextlib.suppress(OSError):
                _shut(fd, name)
        if self._nccl:
            with contextlib.suppress(RuntimeError, AttributeError):
                world: Any = dist.group.WORLD
                world._get_backend(torch.device("cuda")).abort()  # noqa: SLF001 - nothing public does it

    def close(self) -> None:
        """Leave the torch group and give back its sockets."""
        if dist.is_initialized():
            if self.stuck:  # torch would wait for its threads: nobody may ever destroy it
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
            with contextlib.suppress(RuntimeError):  # of a group that broke
                dist.destroy_process_group()
        # Torch counts groups and names the next by the count. One that could not be formed is counted and never
        # destroyed, and we would wait for a newcomer, whose count begins at 0, under another name.
        dist.distributed_c10d._world.group_count = 0  # noqa: SLF001 - nothing public does it
        self._store = None
        self._mine = {}

    def _in_a_thread(self, work: Callable[[], Any]) -> Any:
        """Forming a group cannot be interrupted where it waits for a connection; so it is left behind if need be."""
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again below
                outcome.set_exception(error)

        threading.Thread(target=run, name="sublet-forming", daemon=True).start()
        while not wait([outcome], SLICE.total_seconds()).done:
            self._give_up_if_stuck()
        return outcome.result()

    def _give_up_if_stuck(self) -> None:
        if self._hung_up_s is not None and time.monotonic() - self._hung_up_s > STUCK_S:
            self.stuck = True
            raise RuntimeError("the group is gone and does not notice")


def gist_of(error: BaseException) -> str:
    """The first line and the last: NCCL says what was called in the one, and what was wrong in the other."""
    text = str(error).partition("Exception raised from")[0]  # frames of C++ follow
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [repr(error)]
    return lines[0] if len(lines) == 1 else f"{lines[0][:LONGEST_GIST]} ... {lines[-1][:LONGEST_GIST]}"


def _own_host() -> str:
    host = os.environ.get("SUBLET_HOST", "127.0.0.1")
    if host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return host


def _answers(meet: Meet) -> bool:
    try:
        socket.create_connection((meet.host, meet.port), LOOK_S).close()
    except OSError:
        time.sleep(0.01)
        return False
    return True


def _make_torch_group(store: Any, rank: int, world: int, device: str) -> str:
    """How it talks."""
    backend = agreed_backend(store, rank, world, device)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=COLLECTIVE_TIMEOUT)
    return backend


def _open_store(host: str, port: int, listening: int | None = None) -> Any:
    store = dist.TCPStore(  # type: ignore[attr-defined]  # missing where torch was built without distributed
        host, port, is_master=listening is not None, wait_for_workers=False, master_listen_fd=listening, timeout=CONNECT
    )
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _sockets() -> dict[int, str]:
    """Name (with the inode, so that a descriptor used again is another) by descriptor."""
    found = {}
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("socket:"):
                found[int(entry.name)] = name
    return found


def _shut(fd: int, name: str) -> None:
    """Shut the socket if it is connected to a peer over the network; one that listens must live, or gloo ends us."""
    copy = os.dup(fd)
    with socket.socket(fileno=copy) as connection:
        if str((DESCRIPTORS / str(copy)).readlink()) != name:
            return  # closed and used again since it was listed
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()
            connection.shutdown(socket.SHUT_RDWR)
