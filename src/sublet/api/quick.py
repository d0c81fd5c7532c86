"""Frequent requests of programs (one job, the budget, new events), answered without a framework in between.

The routes are the description and the law: what is not plain (another query, a name that is not found, a figure that is
no number) goes on to them, and so does every other path. An answer from here is the answer from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sublet.api.guard import SCHEMA_VERSION
from sublet.errors import SubletError
from sublet.runtime.controller_api.protocol import Api

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

JOB = re.compile(r"/v1/jobs/([\w.-]+)", re.ASCII)
AFTER = re.compile(rb"after=(\d{1,15})")


class Quick:
    """Before the routes of one server."""

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self.app, self._api = app, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        body = await self._answer(scope["path"], scope["query_string"]) if scope["method"] == "GET" else None
        if body is None:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str, query: bytes) -> bytes | None:
        """None where the routes are to answer."""
        try:
            if not query and (named := JOB.fullmatch(path)) is not None:
                return _document(await self._api.job(self._api.directory.find(named[1])))
            if not query and path == "/v1/budget":
                return _document(await self._api.budget())
            if path == "/v1/events" and (after := AFTER.fullmatch(query)) is not None:
                return _document({"events": list(await self._api.events(after=int(after[1])))})
        except (SubletError, ValueError):
            return None
        return None


_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _document(facts: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode({"schema_version": SCHEMA_VERSION, **facts}).encode()
