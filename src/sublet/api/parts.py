"""Files of a job that are on another machine than the controller: their parts come here before the job does."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import Field

from sublet.api.guard import SCHEMA_VERSION, Body
from sublet.api.limits import MOST_ASKED
from sublet.errors import InvalidValue
from sublet.runtime.controller_api.protocol import Api

__all__ = ["add_parts"]

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class AskedBody(Body):
    """Names of parts that a job is made of."""

    digests: list[Digest] = Field(max_length=MOST_ASKED)


class WholeBody(Body):
    """The name of all files of a job."""

    digest: Digest


class PartsBody(Body):
    """Parts by name, packed and in base64."""

    parts: dict[Digest, str]


def add_parts(app: FastAPI, api: Api) -> None:
    """Which of them are not here, and here they come."""

    @app.post("/v1/parts/whole")
    async def whole(body: WholeBody) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "whole": await api.parts.whole(body.digest)}

    @app.post("/v1/parts/lacking")
    async def lacking(body: AskedBody) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "lacking": await api.parts.lacking(body.digests)}

    @app.post("/v1/parts")
    async def take(body: PartsBody) -> dict[str, Any]:
        parts = {digest: _bytes_of(digest, text) for digest, text in body.parts.items()}
        await api.parts.take(parts)
        return {"schema_version": SCHEMA_VERSION, "taken": len(parts)}


def _bytes_of(digest: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue(f"parts.{digest}", text[:20], "base64") from None
