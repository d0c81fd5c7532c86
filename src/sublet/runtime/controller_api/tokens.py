"""Tokens with a name and a scope, for others than the owner: made, listed, revoked. Digests are kept alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol, TypedDict

from sublet.domain.budget import named_owner
from sublet.errors import InvalidValue
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall, iso_utc
from sublet.runtime.controller.watch import HistoryRow

OWNER, READER = "owner", "reader"  # of the two tokens that every controller has
KEY = "tokens"
TOKEN_BYTES = 32
MOST = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


class Scope(StrEnum):
    """Rights of a token, each more than the one before."""

    READ = "read"  # look at everything
    USER = "user"  # bring jobs, and change them
    ADMIN = "admin"  # all: budgets, tokens, the end of the controller

    def covers(self, other: Scope) -> bool:
        """Whether a holder of this right has that one, too."""
        order = list(Scope)
        return order.index(self) >= order.index(other)


class TokenView(TypedDict):
    """A token, without what opens anything."""

    name: str
    scope: str
    user: str  # who pays for the jobs that it brings
    team: str  # and of which team that is; "" = of none
    made: str  # wall clock, ISO 8601, UTC


class Facts(Protocol):
    """Where they are kept: `sublet.runtime.store.Store`."""

    def get(self, key: str) -> str | None:
        """A fact by name."""
        ...

    def put(self, key: str, value: str) -> None:
        """Remember it."""
        ...


class Tokens:
    """Of one controller. `note(row, by)` writes what was done into its history."""

    def __init__(
        self, facts: Facts, note: Callable[[HistoryRow, str], None], *, rng: Rng = RNG, wall: Wall = WALL
    ) -> None:
        self._facts, self._note, self._rng, self._wall = facts, note, rng, wall

    def create(self, name: str, scope: Scope, *, user: str = "", team: str = "", by: str = "") -> str:
        """The token, which cannot be read again. Jobs that it brings are the user's; without one, the token's name."""
        known = self._known()
        if not NAME.fullmatch(name) or name in (OWNER, READER):
            raise InvalidValue(
                "name", name, "up to 40 letters, digits, _ . or -, and not the name of the two that are there"
            )
        if name in known:
            raise InvalidValue("name", name, "a name that no token has; 'sublet token revoke' ends one")
        if len(known) >= MOST:
            raise InvalidValue("name", name, f"one of {MOST} tokens at the most")
        user = named_owner("user", user or name)
        if team:
            named_owner("team", team)
        if other := next((t for t in self.list() if t["user"] == user and t["team"] != team), None):
            allowed = f"{other['team'] or 'none'}, as of the token {other['name']}: a user is in one team"
            raise InvalidValue("team", team or "none", allowed)
        token = self._rng.token(TOKEN_BYTES)
        facts = {"digest": _digest(token), "scope": str(scope), "made": iso_utc(self._wall)}
        known[name] = {**facts, "user": user, "team": team}
        self._facts.put(KEY, json.dumps(known))
        self._note(HistoryRow(kind="TokenMade", text=f"the token {name} may {scope}"), by)
        return token

    def revoke(self, name: str, *, by: str = "") -> None:
        """It opens nothing from now on."""
        known = self._known()
        if name not in known:
            raise InvalidValue("name", name, f"one of: {', '.join(known) or 'there is none'}")
        del known[name]
        self._facts.put(KEY, json.dumps(known))
        self._note(HistoryRow(kind="TokenRevoked", text=f"the token {name} opens nothing any more"), by)

    def list(self) -> list[TokenView]:
        """In the order in which they were made."""
        return [
            {
                "name": name,
                "scope": each["scope"],
                "user": each.get("user", name),  # tokens from before there were teams
                "team": each.get("team", ""),
                "made": each["made"],
            }
            for name, each in self._known().items()
        ]

    def owner(self, name: str) -> tuple[str, str]:
        """User and team of the holder of this token; empty for that of the owner."""
        return next(((each["user"], each["team"]) for each in self.list() if each["name"] == name), ("", ""))

    def teams(self) -> dict[str, str]:
        """Of the users that have tokens."""
        return {each["user"]: each["team"] for each in self.list()}

    def digests(self) -> dict[bytes, tuple[str, Scope]]:
        """The name and the rights of the token with this digest."""
        return {bytes.fromhex(each["digest"]): (name, Scope(each["scope"])) for name, each in self._known().items()}

    def _known(self) -> dict[str, dict[str, Any]]:
        return dict(json.loads(self._facts.get(KEY) or "{}"))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
