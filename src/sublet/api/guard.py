"""Checks of a request: the right Host, no foreign Origin, a token or a cookie, a body of bounded size.

Before anything runs.

A page in the user's browser can send requests to the loopback address too. It cannot know the token; the checks of Host
(a name that was re-bound to 127.0.0.1) and Origin (another site) refuse it even if it could. A browser sends a cookie
by itself, and to every port of a host: so one that comes by a cookie must say that our own page asks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from sublet.api.callers import READING, Caller, Callers, needed
from sublet.api.limits import LONGEST_BODY
from sublet.runtime.controller_api.tokens import Scope
from sublet.runtime.settings import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Send
    from starlette.types import Scope as AsgiScope

SCHEMA_VERSION = 1
OPEN = ("/healthz", "/readyz")  # say yes or no, and why not, and nothing of anybody's jobs
PAGE = ("/", "/enter")  # the page without what it shows, and the way in
FILES = "/console/"  # of the page
CALLER = "sublet.caller"  # where the rest of the server finds the caller
HOLDS = "sublet.holds"  # ... and, at any later time, whether they still may
MOST_AT_ONCE = 40  # requests of a caller that is no admin, streams above all: lines are few, and the owner needs one
CARE = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
]
HEADERS = [(b"content-type", b"application/json"), *CARE]


async def refuse(send: Send, status: int, error: str, advice: str, *, exit_code: int = 1) -> None:
    """An answer in the shape of all errors."""
    facts = {"schema_version": SCHEMA_VERSION, "error": error, "field": "", "next": advice, "exit_code": exit_code}
    extra = [(b"www-authenticate", b"Bearer")] if status == 401 else []  # noqa: PLR2004 - HTTP's number
    await send({"type": "http.response.start", "status": status, "headers": [*HEADERS, *extra]})
    await send({"type": "http.response.body", "body": json.dumps(facts).encode()})


class Guard:
    """Lets through what may be asked."""

    def __init__(self, app: ASGIApp, *, port: int, callers: Callers) -> None:
        self.app, self.callers = app, callers
        self.busy: Counter[bytes] = Counter()  # requests that are being answered, by token
        names = [f"[{host}]" if ":" in host else host for host in LOOPBACK]
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())  # noqa: PLR2004 - http

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        if headers.get("host", "").lower() not in self.hosts:
            await refuse(send, 403, "the Host header names another host", "ask for 127.0.0.1 and the right port")
            return
        if (origin := headers.get("origin")) is not None and origin.removeprefix("http://") not in self.hosts:
            await refuse(send, 403, "a page of another site may not ask", "use the command line")
            return
        if path in OPEN or (method in READING and (path in PAGE or path.startswith(FILES))):
            await self.app(scope, receive, _with_care(send))
            return
        caller = self.callers.by_token(headers)
        by_cookie = self.callers.by_cookie(headers) if caller is None else None
        if by_cookie is not None and not self._is_our_page(method, headers):
            await refuse(send, 403, "a page of another site may not ask", "use the page that 'sublet dashboard' opens")
            return
        caller = caller or by_cookie
        if caller is None:
            advice = "send 'Authorization: Bearer TOKEN'; the token is in the file 'token' of the state directory"
            await refuse(send, 401, "the token is missing or wrong", advice)
        elif not caller.scope.covers(least := needed(method, path)):
            await _refuse_scope(send, caller, least)
        elif caller.scope is not Scope.ADMIN and self.busy[caller.key] >= MOST_AT_ONCE:
            await refuse(send, 429, f"{MOST_AT_ONCE} requests of {caller.who} are being answered", "close a page")
        elif method == "POST" and not headers.get("content-type", "").startswith("application/json"):
            await refuse(send, 415, "the body must be JSON", "send 'Content-Type: application/json'", exit_code=2)
        elif not headers.get("content-length", "0").isdigit() or int(headers.get("content-length", "0")) > LONGEST_BODY:
            await refuse(send, 413, f"the body has more than {LONGEST_BODY} bytes", "send less", exit_code=2)
        elif "transfer-encoding" in headers:
            await refuse(send, 411, "the length of the body is missing", "send Content-Length", exit_code=2)
        else:
            came_by = headers if caller is by_cookie else None
            scope[CALLER], scope[HOLDS] = caller, partial(self.callers.holds, caller, came_by)
            self.busy[caller.key] += 1
            try:
                await self.app(scope, receive, _with_care(send))
            finally:
                self.busy[caller.key] -= 1

    def _is_our_page(self, method: str, headers: Mapping[str, str]) -> bool:
        """A browser says whence a request comes; what changes something must say it by its Origin."""
        site = headers.get("sec-fetch-site", "same-origin")
        return site in ("same-origin", "none") if method in READING else site == "same-origin" and "origin" in headers


def _with_care(send: Send) -> Send:
    """Headers of an answer: it is not cached, its type is not guessed, and it is no page, whatever its text."""

    async def careful(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(each for each in CARE if each[0] not in said)]
        await send(message)

    return careful


async def _refuse_scope(send: Send, caller: Caller, least: Scope) -> None:
    if caller.scope is Scope.READ:
        advice = "the token that may change something is in the file 'token' of the state directory"
        await refuse(send, 403, "this token may only read", advice)
    else:
        advice = f"ask with a token of the scope {least}, or ask its owner"
        await refuse(
            send, 403, f"the token of {caller.who} has the scope {caller.scope}, and this takes {least}", advice
        )
