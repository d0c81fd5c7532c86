"""The sockets of a group of workers: where members meet, how connections are ended, and waits on them.

Nothing in torch wakes a member that waits for one that is gone. The end of the connections does. Torch opens them by
itself, so the sockets of a group are those that were not there before it.

Gloo can lose the news of that end: a message that was being answered when it failed waits on. Seen about once in a
hundred kills. Nor can the forming of a group be interrupted while it waits for a connection. So waits that may never
end run in a thread (Patience), which is left behind once that is known.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from math import inf
from queue import SimpleQueue
from typing import Any, TypeVar

import torch.distributed as dist

from sublet.machine.wall import WALL, Wall

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # as torch's own; a dead member is noticed long before
CONNECT = timedelta(seconds=60)  # once it answers: torch looks up names on the way, which takes seconds without a DNS
LOOK_S = 0.5  # for the store to answer; then look whether it is still wanted, and try again
DESCRIPTORS = "/proc/self/fd"
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closed without a good-bye
SLICE_S = 0.1  # of waiting, between looks at whether it still makes sense
STUCK_S = 0.3  # from hanging up until what has not noticed never will; the others take milliseconds
SLICE = timedelta(seconds=SLICE_S)
Answer = TypeVar("Answer")


class Connections:
    """All sockets that were opened since this was made, until `seal`."""

    def __init__(self) -> None:
        self._before = _sockets()
        self._mine: dict[int, str] | None = None  # by descriptor, once all are open

    def seal(self) -> None:
        """The present sockets, and no later ones."""
        self._mine = self._opened()

    def forget(self) -> None:
        """They are closed, and their descriptors may be used again."""
        self._mine = {}

    def end(self) -> None:
        """Shut them; any thread may call this, and more than once."""
        mine = self._mine
        for fd, name in (self._opened() if mine is None else mine).items():
            with contextlib.suppress(OSError):
                _shut(fd, name)

    def _opened(self) -> dict[int, str]:
        return {fd: name for fd, name in _sockets().items() if self._before.get(fd) != name}


def own_host() -> str:
    """The address at which other members reach us."""
    host = os.environ.get("SUBLET_HOST", "127.0.0.1")
    if host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return host


def answers(host: str, port: int) -> bool:
    """Whether a process listens there."""
    try:
        socket.create_connection((host, port), LOOK_S).close()
    except OSError:
        time.sleep(0.01)
        return False
    return True


def lead_store() -> tuple[str, int, int]:
    """Listen for the others: host, port, and the descriptor for `open_store`, which would listen everywhere."""
    host = own_host()
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    return host, port, listening.detach()


def open_store(host: str, port: int, listening: int | None = None) -> Any:
    """The store at an address; ours if we listen."""
    store = dist.TCPStore(  # type: ignore[attr-defined]  # missing where torch was built without distributed
        host, port, is_master=listening is not None, wait_for_workers=False, master_listen_fd=listening, timeout=CONNECT
    )
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def _sockets() -> dict[int, str]:
    """Name (with the inode, so that a descriptor used again is another) by descriptor."""
    found = {}
    for entry in os.listdir(DESCRIPTORS):  # noqa: PTH208 - paths take five times as long, in every change
        with contextlib.suppress(OSError):
            name = os.readlink(f"{DESCRIPTORS}/{entry}")  # noqa: PTH115 - as above
            if name.startswith("socket:"):
                found[int(entry)] = name
    return found


def _shut(fd: int, name: str) -> None:
    """Shut the socket if it is connected over the network; a listening one must live, or gloo ends the process.

    Undelivered data is dropped. The kernel would retry for minutes, and a peer that was cut off would then end a sum of
    an old group with data that comes late.
    """
    copy = os.dup(fd)
    with socket.socket(fileno=copy) as connection:
        if os.readlink(f"{DESCRIPTORS}/{copy}") != name:  # noqa: PTH115 - as above
            return  # closed and used again since it was listed
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            connection.shutdown(socket.SHUT_RDWR)


class Patience:
    """For the connections of one group; waits end `STUCK_S` after `end`."""

    def __init__(self, wall: Wall = WALL) -> None:
        self.stuck = False  # something will never end
        self._wall = wall
        self._ended_s: float | None = None
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] | None = None

    def end(self) -> None:
        """The connections are cut."""
        if self._ended_s is None:
            self._ended_s = self._wall.monotonic()

    def check(self) -> None:
        """RuntimeError if the connections were cut: a collective may have returned because of that alone."""
        if self._ended_s is not None:
            raise RuntimeError("the group is gone")

    def look(self) -> None:
        """RuntimeError if the wait should have ended by now."""
        if self._ended_s is not None and self._wall.monotonic() - self._ended_s > STUCK_S:
            self.stuck = True
            raise RuntimeError("the group is gone and does not notice")

    def begin(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Run this in a thread of its own."""
        outcome: Future[Answer] = Future()
        threading.Thread(target=_do, args=(work, outcome), name="sublet-forming", daemon=True).start()
        return outcome

    def until(self, outcome: Future[Answer], limit_s: float = inf) -> Answer:
        """The outcome; RuntimeError where there is none within the limit."""
        ends_s = self._wall.monotonic() + limit_s
        while True:
            try:
                return outcome.result(min(SLICE_S, limit_s))
            except TimeoutError:
                if outcome.done():  # it is its own, or it came between the end of our patience and this look
                    return outcome.result()
                self.look()
                if self._wall.monotonic() >= ends_s:
                    self.stuck = True
                    raise RuntimeError("it takes too long") from None

    def until_summed(self, work: Any) -> None:
        """Wait for a collective of gloo in slices, without another thread.

        Not for a message: gloo closes all connections when the wait for one times out.
        """
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
                self.look()

    def run(self, work: Callable[[], Answer], limit_s: float = inf) -> Answer:
        """Run this in one thread, after earlier calls; for frequent waits."""
        if self._work is None:
            self._work = SimpleQueue()
            threading.Thread(target=_do_all, args=(self._work,), name="sublet-waiting", daemon=True).start()
        outcome: Future[Answer] = Future()
        self._work.put((work, outcome))
        return self.until(outcome, limit_s)

    def close(self) -> None:
        """The thread ends, unless it is stuck."""
        if self._work is not None:
            self._work.put((_last, Future()))
            self._work = None


def _last() -> None:
    """Work that ends the thread."""


def _do(work: Callable[[], Any], outcome: Future[Any]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again in `until`
        outcome.set_exception(error)


def _do_all(queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]]) -> None:
    while True:
        work, outcome = queue.get()
        if work is _last:
            return
        _do(work, outcome)
        del work, outcome  # what it came to may be large
