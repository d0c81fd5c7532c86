"""The agent's line to its controller: found again when it breaks or falls silent, never waited for, within bounds.

Parts of files go behind everything else, one at a time: whatever is to be said waits for the rest of one part at most.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections import deque

from sublet.errors import BadInput
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.runtime.agent.dialing import Dialer, LineReader, Secure, address_from, dial, in_the_clear
from sublet.wire.lines import Message

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
PING_S = 5.0  # both sides say something as often, or more where a lease is short
CONNECT_S = 5.0  # for a host that does not answer
MOST_UNSENT = 4 << 20  # bytes kept for a controller that is away or slow
MOST_CARRIED = 8 << 20  # bytes of parts that wait; the rest is asked for again
CHUNK = 1 << 16
MOST_READ = 1 << 18  # bytes at once, before others are seen to
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def ping_s(lease_s: float) -> float:
    """Between two words that the line carries."""
    return min(lease_s / 6, PING_S)


def lost_s(lease_s: float) -> float:
    """Seconds of silence after which a line is lost, whatever the network says: it is cut, and dialled again."""
    return 3 * ping_s(lease_s)


class Link:
    """Sends whole lines in order; the first lines of every connection are those of `begin`."""

    def __init__(
        self,
        address: str,
        selector: selectors.BaseSelector,
        *,
        dial: Dialer = dial,
        secure: Secure = in_the_clear,
        wall: Wall = WALL,
        rng: Rng = RNG,
    ) -> None:
        self._leaves_machine = address_from(address)[0] != socket.AF_UNIX  # and not an address that is none
        self._address, self._selector = address, selector
        self._dial, self._secure, self._wall, self._rng = dial, secure, wall, rng
        self._shaking = False  # hands, on a way that is there
        self._socket: socket.socket | None = None
        self._connected = self._shaking = False
        self._reader = LineReader()
        self._heard: list[Message | BadInput] = []
        self._unsent: deque[tuple[bytes, bool]] = deque()  # (line, may be lost)
        self._unsent_bytes = 0
        self._parts: deque[bytes] = deque()
        self._parts_bytes = 0
        self._amid_part = False  # some of the first may have been sent: TLS insists on going on with it
        self._sent_of_first = 0  # of that, or else of the first line
        self._greetings = 0  # lines at the head that belong to this connection
        self._pause_s = FIRST_PAUSE_S
        self._due_s = 0.0  # when to try again, or to give this attempt up
        self._heard_s = self._spoke_s = 0.0  # when something came last, and when a ping went

    def here(self) -> str:
        """The address of our end; "" where the line does not leave the machine, or is not there."""
        if self._socket is None or not self._leaves_machine:
            return ""
        return str(self._socket.getsockname()[0])

    def due_s(self) -> float:
        """When `connect` is to be called next."""
        return float("inf") if self._connected else self._due_s

    def watch_s(self, lease_s: float) -> float:
        """When `watch` is to be called next."""
        if not self._connected:
            return float("inf")
        return min(self._spoke_s + ping_s(lease_s), self._heard_s + lost_s(lease_s))

    def watch(self, lease_s: float, ping: bytes) -> bool:
        """Say something now and then; a line that is silent for three times as long is lost: False, and it is dialled.

        A network that drops everything gives no sign: without this an agent would wait on such a line until its end.
        """
        now_s = self._wall.monotonic()
        if not self._connected:
            return True
        if now_s >= self._heard_s + lost_s(lease_s):
            self._fail()
            return False
        if now_s >= self._spoke_s + ping_s(lease_s):
            self._spoke_s = now_s
            if not self._unsent:  # else there is something to say already
                self.send(ping, may_be_lost=True)
        return True

    def connect(self) -> None:
        """Try, without waiting: `attend` hears what became of it."""
        self._drop()
        try:
            self._socket = self._dial(self._address)
        except OSError:  # no listener, and this is known at once
            self._fail()
            return
        self._due_s = self._wall.monotonic() + CONNECT_S
        self._selector.register(self._socket, selectors.EVENT_WRITE, self)

    def attend(self, events: int) -> bool:
        """The socket is ready; True when a connection has just been made."""
        if self._socket is None:
            return False
        if not self._connected:
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._fail()
                return False
            if not self._shake_hands(self._socket):
                return False
            self._connected, self._heard_s = True, self._wall.monotonic()
            self._spoke_s = self._heard_s
            return True
        if events & selectors.EVENT_WRITE:
            self.flush()
        if events & selectors.EVENT_READ and self._connected:
            self._read()
        return False

    def _shake_hands(self, way: socket.socket) -> bool:
        """Whether that is over. A line in the clear has nothing to wait for."""
        try:
            if not self._shaking:
                self._selector.unregister(way)
                self._socket = way = self._secure(way, self._address)
                self._selector.register(way, selectors.EVENT_WRITE, self)
                self._shaking = True
            if isinstance(way, ssl.SSLSocket):
                way.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(way, selectors.EVENT_READ, self)
        except ssl.SSLWantWriteError:
            self._selector.modify(way, selectors.EVENT_WRITE, self)
        except OSError:
            self._fail()
        else:
            return True
        return False

    def heard(self) -> list[Message | BadInput]:
        """Messages since the last call."""
        heard, self._heard = self._heard, []
        return heard

    def waiting(self) -> set[bytes]:
        """The lines that have not been sent."""
        return {line for line, _ in self._unsent}

    def welcomed(self) -> None:
        """The other side is our controller: the next break is met with quick attempts again."""
        self._pause_s = FIRST_PAUSE_S

    def begin(self, lines: list[bytes]) -> None:
        """Greet on a new connection, before everything that waits."""
        for line in reversed(lines):
            self._unsent.appendleft((line, False))
            self._unsent_bytes += len(line)
        self._greetings = len(lines)
        self.flush()

    def send(self, line: bytes, *, may_be_lost: bool = False) -> None:
        """In order; kept while the controller is away. Beyond the bound the oldest that may be lost goes first."""
        self._unsent.append((line, may_be_lost))
        self._unsent_bytes += len(line)
        if self._unsent_bytes > MOST_UNSENT:
            self._shed()
        self.flush()

    def carry(self, part: bytes) -> None:
        """Behind all lines; lost with the connection, or if too much waits: it is asked for again."""
        if self._connected and self._parts_bytes + len(part) <= MOST_CARRIED:
            self._parts.append(part)
            self._parts_bytes += len(part)
            self.flush()

    def flush(self) -> None:
        """As much as the socket takes."""
        if self._socket is None or not self._connected:
            return
        try:
            while data := self._first():
                self._sent_of_first += self._socket.send(memoryview(data)[self._sent_of_first :])
                if self._sent_of_first == len(data):
                    self._forget_first()
        except LATER:
            pass
        except OSError:
            self._fail()
            return
        waits = self._unsent or self._parts
        self._selector.modify(self._socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0), self)

    # ------------------------------------------------------------------

    def _read(self) -> None:
        """Read with a bound: TLS gives input in small pieces."""
        read = 0
        while self._socket is not None and read < MOST_READ:
            try:
                data = self._socket.recv(CHUNK)
            except LATER:
                return
            except OSError:
                data = b""
            if not data:
                self._fail()
                return
            read += len(data)
            self._heard_s = self._wall.monotonic()
            self._heard += self._reader.feed(data)

    def _first(self) -> bytes:
        """The next bytes to send: a begun one, a line, a part; b"" = nothing."""
        if not self._amid_part:
            if self._unsent:
                return self._unsent[0][0]
            if not self._parts:
                return b""
            self._amid_part = True
        return self._parts[0]

    def _forget_first(self) -> None:
        self._sent_of_first = 0
        if self._amid_part:
            self._parts_bytes -= len(self._parts.popleft())
            self._amid_part = False
            return
        line, _ = self._unsent.popleft()
        self._unsent_bytes -= len(line)
        self._greetings = max(0, self._greetings - 1)

    def _shed(self) -> None:
        """Drop reports of progress, and after them the oldest of all, down to half the bound."""
        for only_idle in (True, False):
            kept: deque[tuple[bytes, bool]] = deque()
            for index, (line, may_be_lost) in enumerate(self._unsent):
                begun = self._sent_of_first > 0 and not self._amid_part
                pinned = index < self._greetings or (index == 0 and begun)
                full = self._unsent_bytes > MOST_UNSENT // 2
                if full and not pinned and (may_be_lost or not only_idle):
                    self._unsent_bytes -= len(line)
                else:
                    kept.append((line, may_be_lost))
            self._unsent = kept
            if self._unsent_bytes <= MOST_UNSENT // 2:
                return

    def _fail(self) -> None:
        self._drop()
        jitter = 0.5 + self._rng.random()  # many agents must not come back in step
        self._due_s = self._wall.monotonic() + self._pause_s * jitter
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def _drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        self._connected = self._shaking = False
        self._reader = LineReader()
        self._parts.clear()
        self._parts_bytes, self._amid_part = 0, False
        while self._greetings:  # they were for that connection
            self._forget_first()
        self._sent_of_first = 0
