"""The connections of a group of workers: where they meet, which sockets are theirs, and how those are ended.

Nothing in torch wakes who waits for one that is gone. What does is the end of the connections, and nobody but the
kernel knows which these are: torch opens them by itself. So those count that were not there before.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

__all__ = ["COLLECTIVE_TIMEOUT", "Connections", "answers", "lead_store", "open_store", "own_host"]

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # as torch's own; a dead member is noticed long before
CONNECT = timedelta(seconds=60)  # once it answers: torch looks up names on the way, which takes seconds without a DNS
LOOK_S = 0.5  # for the store to answer; then look whether it is still wanted, and try again
DESCRIPTORS = "/proc/self/fd"
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closed without a good-bye


class Connections:
    """All sockets that were opened since this was made, until `seal`."""

    def __init__(self) -> None:
        self._before = _sockets()
        self._mine: dict[int, str] | None = None  # by descriptor, once all are open

    def seal(self) -> None:
        """Those that are there now, and no others."""
        self._mine = self._opened()

    def forget(self) -> None:
        """They are closed: their descriptors may be another's soon."""
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
    """Where others reach us."""
    host = os.environ.get("SUBLET_HOST", "127.0.0.1")
    if host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return host


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), LOOK_S).close()
    except OSError:
        time.sleep(0.01)
        return False
    return True


def lead_store() -> tuple[str, int, int]:
    """A place where all meet: host, port, and the descriptor for `open_store`, which would listen everywhere."""
    host = own_host()
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    return host, port, listening.detach()


def open_store(host: str, port: int, listening: int | None = None) -> Any:
    """Ours, if we listen, or another's."""
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
    """Shut the socket if it is connected to a peer over the network; one that listens must live, or gloo ends us.

    What it has not delivered is dropped when it is closed. The kernel would go on trying for minutes, and a peer that
    was cut off would end, with what comes so late, a sum of a group that is no more.
    """
    copy = os.dup(fd)
    with socket.socket(fileno=copy) as connection:
        if os.readlink(f"{DESCRIPTORS}/{copy}") != name:  # noqa: PTH115 - as above
            return  # closed and used again since it was listed
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            connection.shutdown(socket.SHUT_RDWR)
