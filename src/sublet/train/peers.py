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
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sublet.train.agent_line import AgentLine
from sublet.train.devices import NCCL, agreed_backend
from sublet.wire.messages import Leading, Regroup

__all__ = ["BROKEN", "PeerGroup", "gist_of"]

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # as torch's own; a dead member is noticed long before
MEET_S = 86_400.0  # for the first member to open the store: it may evaluate. The controller says if it hangs
LOOK_S = 0.5  # for the store to answer; then look whether it is still wanted, and try again
CONNECT = timedelta(seconds=60)  # once it answers: torch looks up names on the way, which takes seconds without a DNS
SLICE = timedelta(seconds=0.1)  # of waiting, between looks at whether it still makes sense
STUCK_S = 0.3  # from hanging up until a collective that has not noticed never will; the others take milliseconds
BROKEN = (RuntimeError, ValueError)  # what a collective raises whose group is gone (ValueError: already destroyed)
DESCRIPTORS = Path("/proc/self/fd")
LONGEST_GIST = 300  # characters of a line


class PeerGroup:
    """Rank `rank` of `world`; of one alone there is no torch group at all."""

    def __init__(self, *, rank: int = 0, world: int = 1, generation: int = 0) -> None:
        self.rank, self.world, self.generation = rank, world, generation
        self.stuck = False  # something of it will never end
        self._store: Any = None
        self._nccl = False
        self._before = _sockets()
        self._mine: dict[int, str] | None = None  # by descriptor, once the group is formed
        self._hung_up_s: float | None = None

    def form(self, order: Regroup, line: AgentLine, *, device: str) -> None:
        """Meet the others of the order and make the torch group; one of BROKEN if somebody goes away meanwhile.

        `device` is the name of the one that we train on (devices.py).
        """
        host = os.environ.get("SUBLET_HOST", "127.0.0.1")
        if host == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if order.rank == 0:
            listening = socket.create_server((host, 0))  # handed to the store, which would listen on every interface
            port = listening.getsockname()[1]
            descriptor = listening.detach()
            self._store = self._in_a_thread(lambda: _open_store(host, port, descriptor))
            line.say(Leading(worker_id=line.worker_id, generation=order.generation, host=host, port=port))
        else:
            meet = line.meeting(order.generation, MEET_S)
            self._store = self._find_store(meet.host, meet.port, line)
        on_error = sys.excepthook
        self._nccl = self._in_a_thread(lambda: _make_torch_group(self._store, order, device)) == NCCL
        sys.excepthook = on_error  # torch puts one more around it each time
        self._mine = {fd: name for fd, name in _sockets().items() if self._before.get(fd) != name}

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
                if "timed out" not in str(error) or work.is_completed():
                    raise
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

    def _find_store(self, host: str, port: int, line: AgentLine) -> Any:
        """The store of another, which may be gone already."""
        while True:
            line.check()
            try:
                socket.create_connection((host, port), LOOK_S).close()
            except OSError:
                time.sleep(0.01)
            else:
                return self._in_a_thread(lambda: _open_store(host, port))

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


def _make_torch_group(store: Any, order: Regroup, device: str) -> str:
    """How it talks."""
    backend = agreed_backend(store, order.rank, order.world, device)
    dist.init_process_group(
        backend,
        store=store,
        rank=order.rank,
        world_size=order.world,
        timeout=COLLECTIVE_TIMEOUT,
    )
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
