"""The ends of lines as an agent, or a worker, has them: sockets that never wait, and a selector over them."""

from __future__ import annotations

import errno
import selectors
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sublet_lab.world.heap import Process

MOST_UNSENT = 1 << 18  # bytes in flight, before a send would have to wait
SHORT, FULL_S = 0.01, 0.05  # of the sends, where that happens; until there is room again, at most


class Connected(Protocol):
    """The network's connection, as its socket uses it."""

    @property
    def unconfirmed(self) -> int:
        """Bytes that were sent up and have not arrived."""

    def send_up(self, chunk: bytes | None) -> None:
        """To the server; None = no more will come."""

    def forget(self) -> None:
        """It is over."""


class Connects(Protocol):
    """The network, as a socket uses it."""

    def connect(self, socket: WorldSocket, address: Any) -> None:
        """Begin."""


class WorldSocket:
    """As much of a socket as our code uses, without a file descriptor."""

    def __init__(self, process: Process, network: Connects | None = None) -> None:
        self.process, self.host, self._network = process, process.host, network
        self.closed = False
        self.on_ready: Callable[[], None] = lambda: process.wake(process.world.now_s)
        self.short = False  # the kernel takes a part of what is sent now and then, and no more for a moment
        self._full = self._reset = False
        self._received, self._over, self._error = bytearray(), False, 0
        self._connection: Connected | None = None
        self._peer: WorldSocket | None = None  # of a pair, on one machine

    # ------------------------------------------------------------------ the network's side

    def came(self, chunk: bytes | None) -> None:
        """Packets are there."""
        if self.closed:
            return
        if chunk is None:
            self._over = True
        else:
            self._received += chunk
        self.on_ready()

    def connected(self, connection: Connected) -> None:
        """There was an answer."""
        self._connection = connection
        self.on_ready()

    def refused(self) -> None:
        """There is no listener."""
        self._error = errno.ECONNREFUSED
        self.on_ready()

    def reset(self) -> None:
        """The other side knows nothing of this connection (RST): the next call tells."""
        self._reset = True
        self.came(None)

    def join(self, peer: WorldSocket) -> None:
        """Be one end of a pair."""
        self._peer = peer

    # ------------------------------------------------------------------ the program's side

    def settimeout(self, seconds: float) -> None:
        """It never waits anyhow."""

    def setsockopt(self, *_: Any) -> None:
        """Packets go at once anyhow."""

    def getsockopt(self, *_: Any) -> int:
        """SO_ERROR."""
        return self._error

    def getsockname(self) -> tuple[str, int]:
        """Our end."""
        return self.host, 1

    def fileno(self) -> int:
        """None: it is no file."""
        return -1

    def connect_ex(self, address: Any) -> int:
        """Begin."""
        assert self._network is not None  # one of a pair is connected already
        self._network.connect(self, address)
        return errno.EINPROGRESS

    def send(self, data: Any) -> int:
        """All of it, mostly; or BlockingIOError."""
        if self._reset:
            raise ConnectionResetError
        if self._over and self._peer is None:
            raise BrokenPipeError
        if self._full:
            raise BlockingIOError
        sent = self._taken(bytes(data))
        if self._peer is not None:
            if self._peer.closed:
                raise BrokenPipeError
            if self._peer.unread > MOST_UNSENT:
                raise BlockingIOError
            self._peer.came(sent)
        elif self._connection is not None:
            if self._connection.unconfirmed > MOST_UNSENT:
                raise BlockingIOError
            self._connection.send_up(sent)
        return len(sent)

    def _taken(self, data: bytes) -> bytes:
        """The bytes that the kernel has room for."""
        world = self.process.world
        rng = world.stream("sockets")
        if not self.short or len(data) <= 1 or rng.random() >= SHORT:
            return data
        self._full = True
        world.after(rng.uniform(0.0, FULL_S), self._make_room)
        return data[: rng.randrange(1, len(data))]

    def _make_room(self) -> None:
        self._full = False
        self.on_ready()

    def sendall(self, data: Any) -> None:
        """As `send`."""
        self.send(data)

    def recv(self, size: int) -> bytes:
        """The bytes there; b"" at the end, BlockingIOError while there is nothing."""
        if self._reset:
            raise ConnectionResetError
        if self._received:
            was_full = self.unread > MOST_UNSENT
            data = bytes(self._received[:size])
            del self._received[:size]
            if was_full and self._peer is not None and self.unread <= MOST_UNSENT:
                self._peer.on_ready()
            return data
        if self._over:
            return b""
        raise BlockingIOError

    def close(self) -> None:
        """The other side learns of it."""
        if self.closed:
            return
        self.closed = True
        if self._peer is not None:
            self._peer.came(None)
        if self._connection is not None:
            self._connection.send_up(None)
            self._connection.forget()

    @property
    def readable(self) -> bool:
        """A read would not wait."""
        return bool(self._received) or self._over

    @property
    def writable(self) -> bool:
        """A write would not wait."""
        if self._full:
            return False
        if self._connection is not None:
            return self._connection.unconfirmed <= MOST_UNSENT
        if self._peer is not None:
            return self._peer.closed or self._peer.unread <= MOST_UNSENT
        return bool(self._error)

    @property
    def unread(self) -> int:
        """Bytes that have come, and lie there."""
        return len(self._received)

    @property
    def stands(self) -> bool:
        """It is connected, as far as this end knows."""
        return self._connection is not None and not self._over and not self.closed


def socket_pair(process: Process, other: Process) -> tuple[WorldSocket, WorldSocket]:
    """A line within one machine, which no network can cut."""
    ours, theirs = WorldSocket(process), WorldSocket(other)
    ours.join(theirs)
    theirs.join(ours)
    return ours, theirs


class WorldSelector(selectors.BaseSelector):
    """Says which of its sockets are ready, and never waits for one."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if fileobj in self._keys:
            raise KeyError(fileobj)
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj]
        if key.events != events or key.data is not data:
            self._keys[fileobj] = key = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        del timeout  # the world's clock stands still meanwhile
        found = []
        for socket, key in self._keys.items():
            ready = key.events & selectors.EVENT_READ if socket.readable else 0
            if key.events & selectors.EVENT_WRITE and socket.writable:
                ready |= selectors.EVENT_WRITE
            if ready:
                found.append((key, ready))
        return found

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()
