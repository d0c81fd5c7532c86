"""The server that agents connect to: access, messages, and leases that are renewed while it is open.

Every engine is this server behind a guard of its own, which says where it may listen (local.py, ray.py).

Parts of files go behind everything else, one at a time: an order waits for the rest of one part at most.

A node without one may ask for it, once, with the secret of a node that is expected, or for the code that agents are
made of, and is hung up on after the answer. Each peer is unknown until its Hello: at most so many at once, whatever
they send or do not send.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import socket
import ssl
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sublet.domain.quantity import positive
from sublet.errors import BadInput, InvalidValue, SubletError
from sublet.runtime.agent.dialing import (
    LineReader,
    address_from,
    host_and_port,
    is_secure,
    keep_little_unsent,
    message_from,
)
from sublet.runtime.agent.link import lost_s, ping_s
from sublet.runtime.engines.protocol import Hear
from sublet.runtime.file_sync.own_code import Wanted, own_code, wanted_in
from sublet.runtime.identity.authority import Authority
from sublet.runtime.identity.enrolment import LONGEST, answer_to, asked_in
from sublet.runtime.identity.names import node_of
from sublet.wire.files import Part
from sublet.wire.lines import LONGEST_LINE, Message, plain_text, to_frame, to_line
from sublet.wire.messages import (
    OLDEST_VERSION,
    WIRE_VERSION,
    AboutWorker,
    FromWorker,
    GpuSeen,
    Hello,
    Noticed,
    Ping,
    RenewLease,
    ToAgent,
    ToController,
    Travelling,
    Welcome,
)

HELLO_S = 5.0  # for a peer to say its Hello
LONGEST_HELLO = 1 << 18  # bytes of a peer's first line, and of what comes with it at once
MOST_COMPLAINTS = 20  # a minute, in the log, about unknown peers or about one agent
MOST_UNREAD = 4 << 20  # bytes that an agent may leave unread before its line is cut
MOST_CARRIED = 8 << 20  # bytes of parts that wait; the rest is asked for again

_log = logging.getLogger(__name__)


class LineOwner(Protocol):
    """The receiver of what happens on a line."""

    def add_unknown(self, line: Line) -> None:
        """A peer has connected, without a Hello yet."""
        ...

    def drop_line(self, line: Line) -> None:
        """A connection is gone."""
        ...

    def take_message(self, line: Line, message: Message | BadInput) -> None:
        """A line of an agent, or of a peer that claims to be one."""
        ...


class Complaints:
    """Log lines about a peer that may send anything: so many lines a minute, each of them short."""

    def __init__(self) -> None:
        self._since_s, self._told, self._untold = -60.0, 0, 0

    def log(self, text: str, *facts: object, trace: bool = False) -> None:
        """A warning, or one more that is only counted."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._since_s >= 60.0:  # noqa: PLR2004 - a minute
            if self._untold:
                _log.warning("%d more such lines were left out", self._untold)
            self._since_s, self._told, self._untold = now_s, 0, 0
        if self._told < MOST_COMPLAINTS:
            self._told += 1
            _log.warning("%s", plain_text(text % facts), exc_info=trace)
        else:
            self._untold += 1


class Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, owner: LineOwner, *, identity: str = "") -> None:
        self._owner = owner
        self.identity = identity  # the node whose certificate it has shown; "" = none
        self._reader = LineReader(LONGEST_HELLO)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.node_id = ""  # "" = no Hello yet
        self.pings = False
        self.heard_s = 0.0  # the loop's time
        self.complaints = Complaints()
        self.refused = 0  # lines
        self._frames = False  # it reads them
        self._parts: deque[bytes] = deque()
        self._parts_bytes = 0
        self._full = False  # not all that was written has left this process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for Hello, but not for long."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.set_write_buffer_limits(high=1, low=0)
            keep_little_unsent(transport.get_extra_info("socket"))
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self._too_late)
        self._owner.add_unknown(self)

    def settle(self) -> None:
        """Another waits for what comes next."""
        if self._deadline is not None:
            self._deadline.cancel()

    def admit(self, hello: Hello) -> None:
        """It is the agent of a node."""
        self.node_id, self.pings, self._frames = hello.node_id, hello.pings, hello.frames
        self._reader.longest = LONGEST_LINE

    def data_received(self, data: bytes) -> None:
        """Lines, whole or in part."""
        self.heard_s = asyncio.get_running_loop().time()
        for line in self._reader.whole(data):
            if self._transport is None or self._transport.is_closing():
                return  # the rest is not even read: an unknown peer must not cost time
            self._owner.take_message(self, message_from(line))

    def connection_lost(self, exc: Exception | None) -> None:
        """The agent is gone, or we have hung up."""
        del exc  # why does not matter
        self.settle()
        self._owner.drop_line(self)
        self._transport = None

    def send(self, message: ToAgent) -> bool:
        """Never waits; an agent that does not read is cut off."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > MOST_UNREAD:
            _log.warning("%s does not read its line: it is cut", self.node_id)
            self.cut()
            return False
        if isinstance(message, Part) and self._frames:
            return self._carry(to_frame(message))
        self._transport.write(to_line(message))
        return True

    def pause_writing(self) -> None:
        """Something waits to be sent."""
        self._full = True

    def resume_writing(self) -> None:
        """All is sent."""
        self._full = False
        self._carry_on()

    def _carry(self, frame: bytes) -> bool:
        if self._parts_bytes + len(frame) > MOST_CARRIED:
            return False
        self._parts.append(frame)
        self._parts_bytes += len(frame)
        self._carry_on()
        return True

    def _carry_on(self) -> None:
        while self._parts and not self._full and self._transport is not None and not self._transport.is_closing():
            frame = self._parts.popleft()
            self._parts_bytes -= len(frame)
            self._transport.write(frame)

    def hang_up(self) -> None:
        """Close, after what was sent."""
        self._owner.drop_line(self)
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close, whatever has not been sent."""
        if self._transport is not None:
            self._transport.abort()

    def _too_late(self) -> None:
        if not self.node_id:
            self._owner.drop_line(self)
            self.cut()


LEASE_S = 30.0
MOST_STRANGERS = 64  # at once; the oldest goes
MOST_REFUSED = 1000  # lines of one agent, before its line is cut
HANG_UP_S = 1.0  # for what was sent to be read, when the engine closes


def _port_error(address: str, port: int, field: str, error: OSError) -> BadInput:
    """The port that the setting `field` names cannot be had."""
    why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    hint = f"see which process does with ss -ltnp 'sport = :{port}', and end it"
    hint += "; or set another port there, and let the tunnel end there" if field else ""
    return BadInput(f"{field} = {port}" if field else address, f"agents cannot be heard at {address}: {why}", hint=hint)


def refuse_taken(address: str, field: str = "") -> None:
    """An error as for a taken address; nothing is changed. `field` names the setting of its port."""
    _, place = address_from(address)
    if isinstance(place, str):
        _refuse_answering(place)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will
        try:
            probe.bind(place)
        except OSError as error:
            raise _port_error(address, place[1], field, error) from error


def private_socket(path: str) -> socket.socket:
    """A socket that only this user can reach; one that a dead controller left is replaced."""
    _refuse_answering(path)
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


def _identity_of(path: str) -> tuple[int, int] | None:
    """The identity of this file among others at the same place; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path of a socket is text
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove_socket(path: str, identity: tuple[int, int] | None) -> None:
    """Remove a socket without a listener; one that another process has put there since stays."""
    if identity is not None and _identity_of(path) == identity:
        Path(path).unlink(missing_ok=True)


def _refuse_answering(path: str) -> None:
    if _answers(path):
        raise InvalidValue("address", f"unix:{path}", "free: another controller listens there; stop it first")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


class AgentServer:
    """Agents connect to `address`, `unix:/path` or `tcp:host:port`.

    `port_field` is the setting that its port is from, if people chose it. A peer is unknown until its first line, which
    must come soon and be a Hello with the token of a node.
    """

    def __init__(self, address: str, *, lease_s: float = LEASE_S, port_field: str = "") -> None:
        positive("lease_s", lease_s)
        _, self._place = address_from(address)
        self.address, self.lease_s, self._port_field = address, lease_s, port_field
        self._tokens: dict[str, str] = {}
        self._lines: dict[str, Line] = {}
        self._strangers: dict[Line, None] = {}  # the oldest first
        self._complaints, self._faults = Complaints(), Complaints()
        self._server: asyncio.Server | None = None
        self._socket: tuple[int, int] | None = None  # which file is ours, where it is one
        self._renewing: asyncio.Task[None] | None = None
        self._hear: Hear | None = None

    async def open(self, hear: Hear) -> None:
        """Let agents come."""
        self._hear = hear
        loop = asyncio.get_running_loop()
        if isinstance(self._place, tuple):
            try:
                self._server = await self._listen(loop)
            except OSError as error:
                raise _port_error(self.address, self._place[1], self._port_field, error) from error
        else:
            self._server = await loop.create_unix_server(lambda: Line(self), sock=private_socket(self._place))
            self._socket = _identity_of(self._place)
        self._renewing = loop.create_task(self._renew())

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
        """At a port."""
        return await loop.create_server(lambda: Line(self), *host_and_port(self.address))

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
                _remove_socket(self._place, self._socket)
        self._lines.clear()

    # ------------------------------------------------------------------ what lines report

    def add_unknown(self, line: Line) -> None:
        """A peer has connected, without a Hello yet."""
        self._strangers[line] = None
        while len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            self.drop_line(oldest)
            oldest.cut()
            self._complaints.log("more than %d unknown peers at once: the oldest is hung up on", MOST_STRANGERS)

    def drop_line(self, line: Line) -> None:
        """A connection is gone."""
        self._strangers.pop(line, None)
        if line.node_id and self._lines.get(line.node_id) is line:
            del self._lines[line.node_id]

    def take_message(self, line: Line, message: Message | BadInput) -> None:
        """A line of an agent, or of a peer that claims to be one."""
        if not line.node_id:
            self._admit(line, message)
        elif isinstance(message, Ping | Noticed | GpuSeen | AboutWorker | FromWorker | Travelling):
            self._pass_up(line.node_id, message)
        else:
            what = message if isinstance(message, BadInput) else type(message).__name__
            line.complaints.log("refused from %s: %s", line.node_id, what)
            line.refused += 1
            if line.refused > MOST_REFUSED:
                line.complaints.log("%s says nothing that can be used: its line is cut", line.node_id)
                line.cut()

    def _admit(self, line: Line, hello: Message | BadInput) -> None:
        if (why := self._reason_to_refuse(line, hello)) or not isinstance(hello, Hello):
            self._complaints.log("hung up on an unknown peer: %s", why)
            line.cut()
            if isinstance(hello, Hello) and self._is_expected(line, hello):  # its waiter is to know
                self._pass_up(hello.node_id, replace(hello, trouble=why, workers={}))
            return
        before = self._lines.get(hello.node_id)
        if before is not None and before is not line:
            before.hang_up()
        self._strangers.pop(line, None)
        self._lines[hello.node_id] = line
        line.admit(hello)
        line.send(Welcome(node_id=hello.node_id, lease_s=self.lease_s, frames=True))
        self._pass_up(hello.node_id, hello)

    def _reason_to_refuse(self, line: Line, hello: Message | BadInput) -> str:
        """The fault of a peer's first line; "" for an agent that may come in."""
        if not isinstance(hello, Hello):
            return str(hello) if isinstance(hello, BadInput) else f"it begins with {type(hello).__name__}, not Hello"
        if not self._is_expected(line, hello):
            return f"no agent of {hello.node_id!r} is expected with this token, or certificate"
        if not OLDEST_VERSION <= hello.version <= WIRE_VERSION:
            both = f"its agent speaks version {hello.version}, this controller version {WIRE_VERSION}"
            return f"{both}; next: install the same sublet on both, or let the node end and rent another"
        return ""

    def _is_expected(self, line: Line, hello: Hello) -> bool:
        """On any `line`, here: it does not leave the machine, and the token is the identity."""
        del line
        return self._knows(hello.node_id, hello.token)

    def _knows(self, node_id: str, token: str) -> bool:
        known = self._tokens.get(node_id)
        return known is not None and hmac.compare_digest(known.encode(), token.encode(errors="surrogatepass"))

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
            await asyncio.sleep(ping_s(self.lease_s))
            for line in list(self._lines.values()):
                if line.pings and loop.time() - line.heard_s > lost_s(self.lease_s):
                    text = "nothing was heard of %s for %g s: its line is cut"
                    line.complaints.log(text, line.node_id, lost_s(self.lease_s))
                    self.drop_line(line)
                    line.cut()
                else:
                    line.send(RenewLease())


CODE_S = 60.0  # for a node to take the code, a megabyte


class TlsEngine(AgentServer):
    """Agents connect to `address`, `tls:host:port` with an address of this machine, or 0.0.0.0 for all of them."""

    def __init__(self, address: str, *, authority: Authority, lease_s: float = LEASE_S, port_field: str = "") -> None:
        if not is_secure(address):
            raise InvalidValue("address", address, "tls:host:port")
        super().__init__(address, lease_s=lease_s, port_field=port_field)
        self._authority, self._door = authority, authority.door()

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
        return await loop.create_server(lambda: Arrival(self, self._door), *host_and_port(self.address))

    def _is_expected(self, line: Line, hello: Hello) -> bool:
        return hello.node_id in self._tokens and line.identity == hello.node_id

    def came(self, arrival: Arrival, transport: asyncio.Transport, node_id: str) -> None:
        """The handshake is done: with a node, or with an applicant."""
        self.drop_line(arrival)
        line = Line(self, identity=node_id) if node_id else Applicant(self)
        transport.set_protocol(line)
        line.connection_made(transport)
        for data in arrival.early:
            line.data_received(data)

    def vouch(self, line: bytes) -> bytes:
        """The certificate for a request; b"" = no."""
        if (wanted := wanted_in(line)) is not None:
            return self._code_for(wanted)
        asked = asked_in(line)
        if asked is None or not self._knows(asked.node, asked.secret):
            self._complaints.log("hung up on an unknown peer: no certificate for it")
            return b""
        try:
            return answer_to(self._authority.enrol(asked.node, asked.secret, asked.request))
        except (SubletError, OSError) as error:
            self._complaints.log("hung up on an unknown peer: %s", error)
            return b""

    def _code_for(self, wanted: Wanted) -> bytes:
        """It is no secret, but an unknown peer shall not make us send a megabyte.

        The node's own secret is not used up.
        """
        if not self._knows(wanted.node, wanted.secret) or wanted.code != own_code().digest:
            self._complaints.log("hung up on an unknown peer: no code for it")
            return b""
        return own_code().data


class Arrival(Line):
    """A connection on which hands are being shaken."""

    def __init__(self, engine: TlsEngine, door: ssl.SSLContext) -> None:
        super().__init__(engine)
        self._engine, self._door = engine, door
        self.early: list[bytes] = []  # what came with the last of the handshake
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            transport.pause_reading()  # nothing may be read before it is known how
            self._shaking = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """A peer cannot send much before our side of the handshake is done with."""
        self.early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It went, or was cut."""
        if self._shaking is not None:
            self._shaking.cancel()
        super().connection_lost(exc)

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(transport, self, self._door, server_side=True, ssl_handshake_timeout=HELLO_S)
        except (OSError, EOFError):  # ssl's errors are OSErrors; the peer is not known
            secured = None
        if secured is None:
            self._owner.drop_line(self)
            transport.abort()
            return
        self.settle()
        shaken: ssl.SSLObject = secured.get_extra_info("ssl_object")
        self._engine.came(self, secured, node_of(shaken))


class Applicant(Line):
    """A peer without a certificate: one line, one answer."""

    def __init__(self, engine: TlsEngine) -> None:
        super().__init__(engine)
        self._engine, self._said = engine, b""

    def data_received(self, data: bytes) -> None:
        """Until the line is whole."""
        self._said += data
        if b"\n" not in self._said and len(self._said) <= LONGEST:
            return
        if self._transport is not None and not self._transport.is_closing():
            line, _, _ = self._said.partition(b"\n")
            self._transport.write(self._engine.vouch(line[: LONGEST + 1]))
            self.settle()
            self._deadline = asyncio.get_running_loop().call_later(CODE_S, self.cut)
            self.hang_up()
