"""Who may ask: the right Host, no foreign Origin, a token, and a body of bounded size. Before anything else runs.

There are two tokens: with one all may be asked, with the other what changes nothing.

A page in the user's browser can send requests to the loopback address too. It cannot know the token; the checks of
Host (a name that was re-bound to 127.0.0.1) and Origin (another site) refuse it even if it could.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sublet.api.limits import LONGEST_BODY
from sublet.api.state import digest
from sublet.runtime.settings import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OPEN", "SCHEMA_VERSION", "Guard", "refuse"]

SCHEMA_VERSION = 1
OPEN = ("/healthz", "/readyz")  # say yes or no, and why not, and nothing of anybody's jobs
READING = ("GET", "HEAD")  # no such request changes anything
HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
]


async def refuse(send: Send, status: int, error: str, advice: str, *, exit_code: int = 1) -> None:
    """An answer in the shape of all errors."""
    facts = {"schema_version": SCHEMA_VERSION, "error": error, "field": "", "next": advice, "exit_code": exit_code}
    extra = [(b"www-authenticate", b"Bearer")] if status == 401 else []  # noqa: PLR2004 - HTTP's number
    await send({"type": "http.response.start", "status": status, "headers": [*HEADERS, *extra]})
    await send({"type": "http.response.body", "body": json.dumps(facts).encode()})


class Guard:
    """Lets through what may be asked."""

    def __init__(self, app: ASGIApp, *, port: int, token_digest: bytes, read_digest: bytes | None = None) -> None:
        self.app, self.token_digest, self.read_digest = app, token_digest, read_digest
        names = [f"[{host}]" if ":" in host else host for host in LOOPBACK]
        self.hosts = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())  # noqa: PLR2004 - http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host", "").lower() not in self.hosts:
            await refuse(send, 403, "the Host header names another host", "ask for 127.0.0.1 and the right port")
        elif (origin := headers.get("origin")) is not None and origin.removeprefix("http://") not in self.hosts:
            await refuse(send, 403, "a page of another site may not ask", "use the command line")
        elif scope["path"] not in OPEN and not self._knows_token(headers, self.token_digest, self.read_digest):
            advice = "send 'Authorization: Bearer TOKEN'; the token is in the file 'token' of the state directory"
            await refuse(send, 401, "the token is missing or wrong", advice)
        elif scope["method"] not in READING and not self._knows_token(headers, self.token_digest):
            advice = "the token that may change something is in the file 'token' of the state directory"
            await refuse(send, 403, "this token may only read", advice)
        elif scope["method"] == "POST" and not headers.get("content-type", "").startswith("application/json"):
            await refuse(send, 415, "the body must be JSON", "send 'Content-Type: application/json'", exit_code=2)
        elif not headers.get("content-length", "0").isdigit() or int(headers.get("content-length", "0")) > LONGEST_BODY:
            await refuse(send, 413, f"the body has more than {LONGEST_BODY} bytes", "send less", exit_code=2)
        elif "transfer-encoding" in headers:
            await refuse(send, 411, "the length of the body is missing", "send Content-Length", exit_code=2)
        else:
            await self.app(scope, receive, send)

    def _knows_token(self, headers: Mapping[str, str], *digests: bytes | None) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        told = digest(token.strip())
        return scheme.lower() == "bearer" and any(known and hmac.compare_digest(told, known) for known in digests)
