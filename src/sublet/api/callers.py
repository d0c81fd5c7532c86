"""Callers and their scopes: the owner's token, that of readers, tokens with names, and browsers by their cookie.

A browser is let in by a link that opens once. A caller with a token asks for one, and the cookie that the link leaves
may do what that token may, for as long as the token does. Nothing is kept here but digests.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from sublet.api.state import digest
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller_api.tokens import Scope

LINK_S = 60.0  # wall: how long a link opens the page
COOKIE_S = 12 * 3600  # wall: a working day
MOST_LINKS, MOST_COOKIES = 100, 1000
CODE_BYTES = 32
READING = ("GET", "HEAD")  # no such request changes anything
USERS = (
    "/v1/jobs",
    "/v1/dry-run",
    "/v1/parts",
    "/v1/job-files",
    "/v1/plans",
    "/v1/what-if",
)  # a `user` token may ask these
OWN = ("/v1/sessions",)  # a link for oneself, and the end of one's cookie
SECRET = ("/v1/tokens",)  # not for all eyes


def needed(method: str, path: str) -> Scope:
    """Scope that a request needs. A route that is not listed is for admins."""
    if any(path == each or path.startswith(f"{each}/") for each in OWN):
        return Scope.READ
    if any(path == each or path.startswith(f"{each}/") for each in SECRET):
        return Scope.ADMIN
    if method in READING:
        return Scope.READ
    return Scope.USER if any(path == each or path.startswith(f"{each}/") for each in USERS) else Scope.ADMIN


async def while_it_holds(told: AsyncGenerator[bytes, None], holds: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """An endless answer, for as long as its caller may hear it."""
    async with aclosing(told):
        async for message in told:
            if not holds():
                return
            yield message


def cookie_name(port: int) -> str:
    """Cookies know no ports: two controllers of one machine would take each other's away."""
    return f"sublet_{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller and its scope."""

    who: str
    scope: Scope
    key: bytes = field(repr=False)  # digest of the token that it all began with


@dataclass(slots=True)
class _Let:
    caller: Caller
    until_s: float


class Callers:
    """All callers of one server."""

    def __init__(
        self, *, port: int, tokens: Mapping[bytes, tuple[str, Scope]], wall: Wall = WALL, rng: Rng = RNG
    ) -> None:
        self._cookie, self._wall, self._rng = cookie_name(port), wall, rng
        self.tokens = dict(tokens)  # digest -> name, scope
        self._links: dict[bytes, _Let] = {}
        self._cookies: dict[bytes, _Let] = {}

    def by_token(self, headers: Mapping[str, str]) -> Caller | None:
        """Caller of `Authorization: Bearer`."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        told = digest(token.strip())
        if scheme.lower() != "bearer":
            return None
        for known, (who, scope) in self.tokens.items():
            if hmac.compare_digest(told, known):
                return Caller(who=who, scope=scope, key=known)
        return None

    def by_cookie(self, headers: Mapping[str, str]) -> Caller | None:
        """Caller of a browser that came by a link; None once its token is revoked."""
        let = self._cookies.get(digest(self._cookie_in(headers)))
        if let is None or let.until_s < self._wall.monotonic() or let.caller.key not in self.tokens:
            return None
        return let.caller

    def holds(self, caller: Caller, cookie: Mapping[str, str] | None = None) -> bool:
        """Its token has not been revoked since, nor has the `cookie` that it came by (in headers) run out or ended."""
        return caller.key in self.tokens if cookie is None else self.by_cookie(cookie) is not None

    def invite(self, caller: Caller) -> str:
        """A code that lets one browser in, once and soon."""
        code = self._rng.token(CODE_BYTES)
        _keep(self._links, digest(code), _Let(caller, self._wall.monotonic() + LINK_S), MOST_LINKS)
        return code

    def enter(self, code: str) -> str | None:
        """The cookie for a caller with such a code; None for any other."""
        let = self._links.pop(digest(code), None)
        if let is None or let.until_s < self._wall.monotonic():
            return None
        cookie = self._rng.token(CODE_BYTES)
        _keep(self._cookies, digest(cookie), _Let(let.caller, self._wall.monotonic() + COOKIE_S), MOST_COOKIES)
        return cookie

    def leave(self, headers: Mapping[str, str]) -> None:
        """The cookie is worth nothing from now on."""
        self._cookies.pop(digest(self._cookie_in(headers)), None)

    def _cookie_in(self, headers: Mapping[str, str]) -> str:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie:
                return value
        return ""


def _keep(kept: dict[bytes, _Let], key: bytes, let: _Let, most: int) -> None:
    """Keep the newest; a caller that asks for many links loses the oldest."""
    kept[key] = let
    while len(kept) > most:
        del kept[next(iter(kept))]
