"""Events, orders and the values in them as JSON, and back.

Fields go by their names and types, so that a new one is written without a line here, and a file from before it had a
field reads with the field's default. A job's speed model is not written: plans are recorded, and a new plan brings
today's knowledge.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from sublet.domain import actions, events
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.job import Standstill
from sublet.domain.shape import Shape
from sublet.domain.timers import Timer, timer_from_text, timer_to_text
from sublet.errors import BadInput

AS_IT_IS = frozenset({str, int, bool, types.NoneType})  # most of what there is; not what is made of these, as names are
UNRECORDED = frozenset({"speed", "pauses", "weighed"})  # models and tables: what followed from them is recorded


class Unrecorded(Standstill):
    """The speed of a job in a replay: plans are recorded, and so is what else follows from how fast it would go."""


def event_from_json(facts: Mapping[str, Any]) -> Event:
    """The event that `to_tagged` wrote down; a job's speed model is not part of it."""
    kind = getattr(events, str(facts.get("type")), None)
    if kind not in typing.get_args(Event):
        raise BadInput("journal", f"no event is called {facts.get('type')!r}")
    return typing.cast(Event, from_plain(kind, facts))


def action_from_json(facts: Mapping[str, Any]) -> Action:
    """The order that `to_tagged` wrote down."""
    kind = getattr(actions, str(facts.get("type")), None)
    if kind not in typing.get_args(Action):
        raise BadInput("journal", f"no order is called {facts.get('type')!r}")
    return typing.cast(Action, from_plain(kind, facts))


def to_tagged(value: Event | Action) -> dict[str, Any]:
    """With its name."""
    return {"type": type(value).__name__, **to_plain(value)}


def to_plain(value: Any) -> Any:
    """Only what JSON has; a number that it lacks (infinity) becomes its name."""
    if type(value) in AS_IT_IS:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, Timer):
        return timer_to_text(value)
    if dataclasses.is_dataclass(value):
        kind: type = type(value)
        return {name: to_plain(getattr(value, name)) for name in _recorded(kind)}
    raise TypeError(type(value).__name__)


@cache
def _recorded(kind: type) -> tuple[str, ...]:
    """Its fields, but for those that are not written."""
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in UNRECORDED)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """The inverse of `to_plain` for a value of this type; TypeError or ValueError where it is something else."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        if kind is Shape:
            value = _with_grid(value)
        known = hints.keys() - UNRECORDED
        given = {name: from_plain(hints[name], item) for name, item in value.items() if name in known}
        if "speed" in hints:
            given["speed"] = Unrecorded()
        return kind(**given)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        if value is None or type(value) in inner:
            return value
        if kind == Timer:
            return timer_from_text(from_plain(str, value))
        return from_plain(next(part for part in inner if part is not types.NoneType), value)
    if origin is tuple and inner[-1] is not ...:
        return tuple(from_plain(part, item) for part, item in zip(inner, value, strict=True))
    if origin is tuple:
        return tuple(from_plain(inner[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: from_plain(inner[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind}")
    return value


def _with_grid(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """A shape from before version 8, which said `stages`: as many pipelines as fit ran side by side."""
    stages = shape.get("stages", 1)
    if stages == 1 or shape["gpus"] < stages:
        return shape
    return {**shape, "grid": {"copies": shape["gpus"] // stages, "parts": stages}}
