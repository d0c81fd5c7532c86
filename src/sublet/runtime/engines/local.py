"""The engine of one machine: agents come to a socket that only this user can open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import socket
import time
from pathlib import Path

from sublet.domain.quantity import positive
from sublet.errors import BadInput, InvalidValue
from sublet.runtime.agent.line_reader import LineReader, message_from
from sublet.runtime.agent.link import address_from
from sublet.runtime.engines.protocol import Hear
from sublet.wire.lines import LONGEST_LINE, Message, to_line
from sublet.wire.messages import (
    WIRE_VERSION,
    FromWorker,
    Hello,
    Noticed,
    Ping,
    RenewLease,
    ToAgent,
    ToController,
    Welcome,
    WorkerDown,
    WorkerSeen,
    WorkerUp,
)
from sublet.wire.text import plain_text

__all__ = ["LocalEngine"]

LEASE_S = 30.0
HELLO_S = 5.0  # for a stranger to say who it is
MOST_STRANGERS = 64  # at once; the oldest goes
LONGEST_HELLO = 1 << 18  # bytes of a stranger's first line, and of what comes with it at once
MOST_REFUSED = 1000  # lines of one agent, before its line is cut
MOST_COMPLAINTS = 20  # a minute, in the log, about strangers or about one agent
HANG_UP_S = 1.0  # for what was sent to be read, when the engine closes
MOST_UNREAD = 4 << 20  # bytes that an agent may leave unread before its line is cut
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_log = logging.getLogger(__name__)


class LocalEngine:
    """Agents connect to `address` (`unix:/path`, or `tcp:` on loopback); leases are renewed while it is open.

    `port_field` is the setting that its port is from, if people chose it.
    Whoever connects is a stranger until its first line, which must come soon and be a Hello with the token of a node.
    """

    def __init__(self, address: str, *, lease_s: float = LEASE_S, port_field: str = "") -> None:
        positive("lease_s", lease_s)
        self._family, self._place = address_from(address)
        if isinstance(self._place, tuple) and self._place[0] not in LOOPBACK:
            raise InvalidValue("address", address, "on loopback: tokens travel in the clear")
        self.address, self.lease_s, self._port_field = address, lease_s, port_field
        self._tokens: dict[str, str] = {}
        self._lines: dict[str, _Line] = {}
        self._strangers: dict[_Line, None] = {}  # the oldest first
        self._complaints, self._faults = _Complaints(), _Complaints()
        self._server: asyncio.Server | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._hear: Hear | None = None

    async def open(self, hear: Hear) -> None:
        """Let agents come."""
        self._hear = hear
        loop = asyncio.get_running_loop()
        if isinstance(self._place, tuple):
            try:
                self._server = await loop.create_server(lambda: _Line(self), *self._place)
            except OSError as error:
                raise _deaf(self.address, self._place[1], self._port_field, error) from error
        else:
            self._server = await loop.create_unix_server(lambda: _Line(self), sock=_listening(self._place))
        self._renewing = loop.create_task(self._renew())

    def expect(self, node_id: str, token: str) -> None:
        """An agent for this node may come, with this token."""
        self._tokens[node_id] = token

    def send(self, node_id: str, message: ToAgent) -> bool:
        """Pass it on, if the agent is there and reads."""
        line = self._lines.get(node_id)
        return line is not None and line.send(message)

    async def close(self) -> None:
        """Let no agent in any more, and hang up."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            lines = [*self._lines.values(), *self._strangers]
            for line in lines:
                line.hang_up()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), HANG_UP_S)
            for line in lines:
                line.cut()
            self._server = None
            if isinstance(self._place, str):
                _forget(self._place)
        self._lines.clear()

    # ------------------------------------------------------------------ what lines report

    def met(self, line: _Line) -> None:
        """Somebody has connected and has not said who it is."""
        self._strangers[line] = None
        while len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            self.lost(oldest)
            oldest.cut()
            self._complaints.log("more than %d strangers at once: the oldest is hung up on", MOST_STRANGERS)

    def lost(self, line: _Line) -> None:
        """A connection is gone."""
        self._strangers.pop(line, None)
        if line.node_id and self._lines.get(line.node_id) is line:
            del self._lines[line.node_id]

    def heard(self, line: _Line, message: Message | BadInput) -> None:
        """A line of an agent, or of somebody who says so."""
        if not line.node_id:
            self._admit(line, message)
        elif isinstance(message, Noticed | WorkerUp | WorkerSeen | WorkerDown | FromWorker):
            self._pass_up(line.node_id, message)
        elif not isinstance(message, Ping):
            what = message if isinstance(message, BadInput) else type(message).__name__
            line.complaints.log("refused from %s: %s", line.node_id, what)
            line.refused += 1
            if line.refused > MOST_REFUSED:
                line.complaints.log("%s says nothing that can be used: its line is cut", line.node_id)
                line.cut()

    def _admit(self, line: _Line, hello: Message | BadInput) -> None:
        if (why := self._why_not(hello)) or not isinstance(hello, Hello):
            self._complaints.log("hung up on a stranger: %s", why)
            line.cut()
            return
        before = self._lines.get(hello.node_id)
        if before is not None and before is not line:
            before.hang_up()
        self._strangers.pop(line, None)
        self._lines[hello.node_id] = line
        line.admitted(hello)
        line.send(Welcome(node_id=hello.node_id, lease_s=self.lease_s))
        self._pass_up(hello.node_id, hello)

    def _why_not(self, hello: Message | BadInput) -> str:
        """What is wrong with the first line of somebody; "" for an agent that may come in."""
        if not isinstance(hello, Hello):
            return str(hello) if isinstance(hello, BadInput) else f"it begins with {type(hello).__name__}, not Hello"
        token = self._tokens.get(hello.node_id)
        if token is None or not hmac.compare_digest(token.encode(), hello.token.encode()):
            return f"no agent of {hello.node_id!r} is expected with this token"
        if hello.version != WIRE_VERSION:
            return f"{hello.node_id} speaks version {hello.version}, not {WIRE_VERSION}"
        return ""

    def _pass_up(self, node_id: str, message: ToController) -> None:
        if self._hear is None:
            return
        try:
            self._hear(node_id, message)
        except Exception:  # noqa: BLE001 - a fault of the hearer's; the line and what follows on it live on
            self._faults.log("%s from %s could not be taken", type(message).__name__, node_id, trace=True)

    async def _renew(self) -> None:
        """Keep leases alive, and hang up on agents that have been silent for too long: they dial again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.lease_s / 6)
            for line in list(self._lines.values()):
                if line.pings and loop.time() - line.heard_s > self.lease_s / 2:
                    line.complaints.log(
                        "nothing was heard of %s for %g s: its line is cut", line.node_id, self.lease_s / 2
                    )
                    self.lost(line)
                    line.cut()
                else:
                    line.send(RenewLease())


class _Complaints:
    """What goes to the log about somebody who may send anything: so many lines a minute, each of them short."""

    def __init__(self) -> None:
        self._since_s, self._told, self._untold = -60.0, 0, 0

    def log(self, text: str, *facts: object, trace: bool = False) -> None:
        """A warning, or one more that is only counted."""
        now_s = time.monotonic()
        if now_s - self._since_s >= 60.0:  # noqa: PLR2004 - a minute
            if self._untold:
                _log.warning("%d more such lines were left out", self._untold)
            self._since_s, self._told, self._untold = now_s, 0, 0
        if self._told < MOST_COMPLAINTS:
            self._told += 1
            _log.warning("%s", plain_text(text % facts), exc_info=trace)
        else:
            self._untold += 1


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._reader = LineReader(LONGEST_HELLO)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.node_id = ""  # "" = has not said who it is
        self.pings = False
        self.heard_s = 0.0  # the loop's time
        self.complaints = _Complaints()
        self.refused = 0  # lines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for Hello, but not for long."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self._too_late)
        self._engine.met(self)

    def admitted(self, hello: Hello) -> None:
        """It is the agent of a node."""
        self.node_id, self.pings = hello.node_id, hello.pings
        self._reader.longest = LONGEST_LINE

    def data_received(self, data: bytes) -> None:
        """Lines, whole or in part."""
        self.heard_s = asyncio.get_running_loop().time()
        for line in self._reader.whole(data):
            if self._transport is None or self._transport.is_closing():
                return  # the rest is not even read: a stranger must not cost time
            self._engine.heard(self, message_from(line))

    def connection_lost(self, exc: Exception | None) -> None:
        """The agent is gone, or we have hung up."""
        del exc  # why does not matter
        if self._deadline is not None:
            self._deadline.cancel()
        self._engine.lost(self)
        self._transport = None

    def send(self, message: ToAgent) -> bool:
        """Never waits; an agent that does not read is cut off."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            _log.warning("%s does not read its line: it is cut", self.node_id)
            self.cut()
            return False
        self._transport.write(to_line(message))
        return True

    def hang_up(self) -> None:
        """Close, after what was sent."""
        self._engine.lost(self)
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close, whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def _too_late(self) -> None:
        if not self.node_id:
            self._engine.lost(self)
            self.cut()


def _deaf(address: str, port: int, field: str, error: OSError) -> BadInput:
    """Nobody can be heard at this port, which the setting `field` names."""
    why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    hint = f"see who does with ss -ltnp 'sport = :{port}', and end it"
    hint += "; or set another port there, and let the tunnel end there" if field else ""
    return BadInput(f"{field} = {port}" if field else address, f"agents cannot be heard at {address}: {why}", hint=hint)


def _listening(path: str) -> socket.socket:
    """A socket that only this user can reach; one that a dead controller left is replaced."""
    if _answers(path):
        raise InvalidValue("address", f"unix:{path}", "free: another controller listens there; stop it first")
    Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise InvalidValue("address", f"unix:{path}", f"a path that can be listened on ({error})") from error
    finally:
        os.umask(mask)
    return listener


def _forget(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
