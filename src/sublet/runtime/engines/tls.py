"""The engine between machines: agents come over TLS, and their certificate is their identity.

A node without one may ask for it, once, with the secret of a node that is expected, or for the code that agents are
made of, and is hung up on after the answer. Each peer is unknown until its Hello: at most so many at once, whatever
they send or do not send.
"""

from __future__ import annotations

import asyncio
import ssl

from sublet.errors import InvalidValue, SubletError
from sublet.runtime.agent.dialing import host_and_port, is_secure
from sublet.runtime.engines.server import HELLO_S, LEASE_S, AgentServer, Line
from sublet.runtime.file_sync.own_code import Wanted, own_code, wanted_in
from sublet.runtime.identity.authority import Authority
from sublet.runtime.identity.enrolment import LONGEST, answer_to, asked_in
from sublet.runtime.identity.names import node_of
from sublet.wire.messages import Hello

__all__ = ["TlsEngine"]

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
