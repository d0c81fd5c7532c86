"""How many connections may be open at once: the port is open to everybody on this machine, and descriptors are few.

A caller that has not sent the head of a request soon is hung up on; where too many lines are open, the oldest on which
nothing goes on. A request that is being answered (a log that is followed) is never cut.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    Http: Any = object
else:
    Http = AutoHTTPProtocol

__all__ = ["MOST_CONNECTIONS", "bounded_connections"]

MOST_CONNECTIONS = 128  # at once; far more than people and dashboards have
HEAD_S = 10.0  # for the head of a first request


def bounded_connections() -> type:
    """The protocol of one server: uvicorn's own, with bounds over all of its lines."""
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
