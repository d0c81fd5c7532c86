"""The base of all request bodies: strict, and no unknown field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """A field that is not known is an error, no number is a text or a truth value, and none is infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
