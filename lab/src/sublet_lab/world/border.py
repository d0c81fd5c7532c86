"""The HTTP border: users outside ask the shipped application of a controller, over a network that delays and forgets.

A request arrives after a while, if its controller is there by then; the answer comes back after another, if the
controller and the way are still there. So every promise may have been given and never heard, as with any server. The
real HTTP server (uvicorn, sockets) is left out; guard, idempotency, routes and errors are the shipped ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from sublet.api.routes import guarded, routes_to
from sublet.api.state import digest
from sublet.runtime.controller_api.protocol import Api
from sublet_lab.world.heap import World
from sublet_lab.world.loop import LoopProcess

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message

PORT = 80
TOKEN = "a user's"  # noqa: S105 - of a simulated world
MEAN_S = 0.01  # of one way

Hear = Callable[[int, dict[str, Any]], None]  # status and body of an answer

_asked: ContextVar[Api] = ContextVar("_asked")  # whose routes are asked, by this task and those that it begins


class _Asked:
    """Any caller."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_asked.get(), name)


@cache
def _routes() -> FastAPI:
    """Built once for all controllers of all worlds: that takes as long as a tenth of a life. They keep nothing."""
    return routes_to(cast(Api, _Asked()))


class Border:
    """The border of one controller's life."""

    def __init__(self, world: World, process: LoopProcess, api: Api) -> None:
        self._world, self._process, self._api = world, process, api
        self._app: ASGIApp = guarded(_routes(), port=PORT, token_digest=digest(TOKEN))
        self._rng = world.stream("border")
        self.deaf_until_s = 0.0  # answers until then are lost on their way

    def get(self, path: str, hear: Hear) -> None:
        """Ask; whether anybody ever answers is another matter."""
        self._ask("GET", path, b"", "", hear)

    def post(self, path: str, body: Mapping[str, Any], hear: Hear, *, key: str = "") -> None:
        """The same for what changes something; under the same `key` it happens once."""
        self._ask("POST", path, json.dumps(body).encode(), key, hear)

    def _ask(self, method: str, path: str, body: bytes, key: str, hear: Hear) -> None:
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        headers |= {"content-length": str(len(body))} if body else {}
        headers |= {"idempotency-key": key} if key else {}
        where, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": where,
            "raw_path": where.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self._world.after(self._way_s(), self._arrive, scope, body, hear)

    def _arrive(self, scope: dict[str, Any], body: bytes, hear: Hear) -> None:
        if self._process.dead:
            return  # refused: they ask again
        if self._world.now_s < self._process.stopped_until_s:
            self._world.at(self._process.stopped_until_s, self._arrive, scope, body, hear)
            return
        self._process.spawn(self._serve(scope, body, hear))

    async def _serve(self, scope: dict[str, Any], body: bytes, hear: Hear) -> None:
        _asked.set(self._api)
        sent: list[Message] = []
        asked = False

        async def receive() -> Message:
            nonlocal asked
            if asked:  # a repeated request waits for the user to go away
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await self._app(scope, receive, send)
        finally:  # a fault of ours is answered before it is raised
            if sent and self._world.now_s >= self.deaf_until_s:
                text = b"".join(message.get("body", b"") for message in sent[1:])
                self._world.after(self._way_s(), hear, sent[0]["status"], json.loads(text))

    def _way_s(self) -> float:
        return self._rng.expovariate(1 / MEAN_S)
