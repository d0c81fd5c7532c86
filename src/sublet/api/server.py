"""Serve the API on a socket until its controller has ended, or a signal asks it to end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from sublet import __version__
from sublet.api.routes import application
from sublet.api.state import Address, StateDir, digest, read_only
from sublet.errors import BadInput, InvalidValue
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.settings import LOOPBACK

CUT_OFF_S = 2  # for streams that would go on for ever


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on the loopback address."""
    if host not in LOOPBACK:
        raise InvalidValue("host", host, "the loopback address 127.0.0.1: nothing else is served")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with its protocol: asyncio sends at once on lines of which it knows that they are TCP; else an answer waits 40 ms
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            hint = "take another with --port, or leave it out for any free one"
            raise BadInput(f"port {port}", "another program uses it", hint=hint) from None
        raise BadInput(f"port {port}", f"cannot be opened ({error.strerror})", hint="leave --port out") from None
    return sock


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: the controller hears of them first."""
        yield


async def serve(
    api: Api,
    run: Callable[[], Awaitable[None]],
    *,
    state: StateDir,
    sock: socket.socket,
    pid: int,
    signals: bool = True,
    live: bool = True,
) -> None:
    """Until `run` returns; then clients are let go, and the address and the token vanish."""
    host, port = sock.getsockname()[:2]
    token_digest = state.new_token()
    read_digest = digest(read_only(state.token()))
    app = application(api, port=port, token_digest=token_digest, read_digest=read_digest, live=live)
    config = uvicorn.Config(
        app,
        http=bounded_connections(),
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the caller is known by its token, not by a header
        lifespan="off",
        timeout_graceful_shutdown=CUT_OFF_S,
        server_header=False,
    )
    server = _Server(config)
    shutdowns: set[asyncio.Task[None]] = set()

    def stop() -> None:
        shutdowns.add(asyncio.create_task(api.shutdown(end_jobs=False)))

    if signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    running = asyncio.ensure_future(run())
    try:
        while not server.started and not serving.done() and not running.done():  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)
        if server.started:
            state.publish(Address(host=host, port=port, pid=pid, version=__version__))
        await asyncio.wait({serving, running}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():  # the server died: do not leave anything rented behind it
            await api.shutdown(end_jobs=False)
        await running
    finally:
        state.withdraw(pid=pid, token_digest=token_digest)
        server.should_exit = True
        await serving


if TYPE_CHECKING:
    Http: Any = object
else:
    Http = AutoHTTPProtocol

MOST_CONNECTIONS = 128  # at once; far more than people and dashboards have
HEAD_S = 10.0  # for the head of a first request


def bounded_connections() -> type:
    """The protocol of one server: uvicorn's own, with bounds over all of its lines, since descriptors are few.

    A caller that sends no head is hung up on; of too many lines, the oldest on which nothing goes on. A request that is
    being answered is never cut.
    """
    lines: dict[Any, None] = {}  # the oldest first

    class Connection(Http):  # type: ignore[misc] # untyped in uvicorn
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            lines[self] = None
            self.late = asyncio.get_running_loop().call_later(HEAD_S, self.hang_up_if_idle)
            if len(lines) > MOST_CONNECTIONS:
                oldest = next((line for line in lines if line.idle), self)
                del lines[oldest]  # now: many may come before its end is heard of
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self.late.cancel()
            lines.pop(self, None)
            super().connection_lost(exc)

        @property
        def idle(self) -> bool:
            return self.cycle is None or bool(self.cycle.response_complete)

        def hang_up_if_idle(self) -> None:
            if self.cycle is None:
                self.transport.abort()

    return Connection
