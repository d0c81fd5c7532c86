"""Keys for others: made, listed, and revoked, with every page that was opened by one."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field

from sublet.api.callers import Callers
from sublet.api.guard import CALLER, SCHEMA_VERSION, Body
from sublet.api.state import digest
from sublet.errors import InvalidValue
from sublet.runtime.controller_api.protocol import Api
from sublet.runtime.controller_api.tokens import Scope

__all__ = ["add_tokens"]


class TokenBody(Body):
    """Owner and scope of a token."""

    name: str = Field(max_length=100)
    scope: str = Scope.READ
    user: str = Field(default="", max_length=100)
    team: str = Field(default="", max_length=100)


def add_tokens(app: FastAPI, api: Api, callers: Callers) -> None:
    """For admins alone: the guard sees to that."""

    @app.get("/v1/tokens")
    async def tokens() -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "tokens": list(api.tokens.list())}

    @app.post("/v1/tokens", status_code=201)
    async def create(body: TokenBody, request: Request) -> dict[str, Any]:
        if body.scope not in list(Scope):
            raise InvalidValue("scope", body.scope, f"one of {', '.join(Scope)}")
        scope = Scope(body.scope)
        who = request.scope[CALLER].who
        token = api.tokens.create(body.name, scope, user=body.user, team=body.team, by=who)
        callers.tokens[digest(token)] = (body.name, scope)
        return {"schema_version": SCHEMA_VERSION, "name": body.name, "scope": scope, "token": token}

    @app.post("/v1/tokens/{name}/revoke")
    async def revoke(name: str, request: Request) -> dict[str, Any]:
        api.tokens.revoke(name, by=request.scope[CALLER].who)
        for key in [key for key, (who, _) in callers.tokens.items() if who == name]:
            del callers.tokens[key]
        return {"schema_version": SCHEMA_VERSION, "name": name, "revoked": True}
