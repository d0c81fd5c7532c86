"""A JobSpec as JSON and back: between the command line and the controller, and in the controller's store."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from sublet.errors import BadInput, InvalidValue
from sublet.runtime.jobs import bounds
from sublet.runtime.jobs.spec import JobSpec, Retries

__all__ = ["HIDDEN", "spec_from_json", "spec_to_json"]

HIDDEN = "***"  # what is shown instead of a secret


def spec_to_json(spec: JobSpec, *, secrets: bool) -> dict[str, Any]:
    """Every field; the values of secrets only where they must travel, stars for every other reader."""
    facts = dataclasses.asdict(spec)
    hidden = facts["secrets"] if secrets else dict.fromkeys(spec.secrets, HIDDEN)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
    words = {name: str(facts[name]) for name in ("market", "on_node_loss", "shards")}
    return {**plain, "secrets": hidden, **words}


def spec_from_json(facts: object) -> JobSpec:
    """The inverse of `spec_to_json`. A missing field has its default; an unknown or ill-typed one is refused."""
    if not isinstance(facts, Mapping):
        raise BadInput("job", "it must be an object with the fields of a job")
    return typing.cast(JobSpec, _build(JobSpec, facts, ""))


@cache
def _hints(kind: type) -> dict[str, Any]:
    """A start reads every job: to work them out is what costs most of it."""
    return typing.get_type_hints(kind)


def _build(kind: type, facts: Mapping[str, Any], place: str) -> object:
    hints = _hints(kind)
    given = {}
    for name, value in facts.items():
        if name not in hints:
            raise InvalidValue(f"{place}{name}", _shown(name, value), f"left out; known are {', '.join(hints)}")
        given[name] = _restore(hints[name], f"{place}{name}", value)
    try:
        return kind(**given)
    except TypeError as error:  # a field without default is missing
        raise BadInput("job", str(error).rpartition("() ")[2]) from None


def _restore(kind: Any, name: str, value: Any) -> Any:
    if kind is Retries and isinstance(value, Mapping):
        return _build(Retries, value, f"{name}.")
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if value is None:
            return None
        kind = next(part for part in inner if part is not types.NoneType)
    if origin is tuple:
        if isinstance(value, list | tuple) and all(type(item) is inner[0] for item in value):
            return tuple(value)
        raise InvalidValue(name, _shown(name, value), f"a list of {inner[0].__name__}")
    if origin is not None and origin is not types.UnionType:  # the only other one: a map of strings
        if isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair):
            return dict(value)
        raise InvalidValue(name, _shown(name, value), "an object of strings")
    if kind is bounds.MarketChoice:
        return bounds.market(_restore(str, name, value))
    if kind is bounds.OnNodeLoss:
        return bounds.node_loss(_restore(str, name, value))
    if kind is bounds.Shards:
        return bounds.shards(_restore(str, name, value))
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise InvalidValue(name, value, "a number that can be") from None
    if type(value) is not kind:
        raise InvalidValue(name, _shown(name, value), getattr(kind, "__name__", str(kind)))
    return value


def _shown(name: str, value: object) -> object:
    return HIDDEN if name == "secrets" else value
