"""Messages as lines of JSON: `{"type": "Meet", "generation": 3, ...}` and back.

A line that is too long or too deep, not JSON, of an unknown type, with a missing or ill-typed field or with a number
beyond its bounds is refused with BadInput, whatever its bytes are; an unknown field is ignored, so that a newer peer
may say more.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from sublet.errors import BadInput
from sublet.wire import messages
from sublet.wire.text import plain_text

__all__ = ["LONGEST_LINE", "LineBuffer", "Message", "from_line", "to_line"]

LONGEST_LINE = 1 << 20  # bytes; far beyond any message, short of what a hostile peer could fill memory with
MOST_DIGITS = 20  # of a whole number: a sign and 64 bits
HIGHEST = (1 << 63) - 1
MOST = 1e15  # of anything that is measured: seconds, samples
MAY_DIVERGE = frozenset({"loss", "noise"})  # training may: these can be any number, and none
# What is billed, or becomes a plan: counted from 0. Others may be below (a signal, an end that is over, "not yet").
FROM_ZERO = frozenset({"done", "work", "redone_steps", "formed_s", "state_s", "seconds", "blocked_s", "size_bytes"})
NO_STEP = -1  # where no checkpoint is left, or none was written yet
Message = messages.ToAgent | messages.ToController | messages.FromWorkerMessage


def to_line(message: Message) -> bytes:
    """One line, ending in a newline."""
    return json.dumps(_plain(message), separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """The message that `to_line` wrote."""
    if len(line) > LONGEST_LINE:
        raise BadInput("message", f"{len(line)} bytes long; at most {LONGEST_LINE} are read")
    try:
        return _message_from(json.loads(line, parse_int=_whole))
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError) as error:
        why = plain_text(f"{type(error).__name__}: {error}")
        raise BadInput("message", f"cannot be read ({why}); it begins {plain_text(line[:40])}") from None


class LineBuffer:
    """Collects what a socket brings, and gives whole messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise BadInput("message", f"no end after {LONGEST_LINE} bytes")
        for line in lines:
            if line:
                yield from_line(line)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        facts = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **facts}
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS or abs(number := int(digits)) > HIGHEST:
        raise ValueError(f"a whole number of {len(digits)} digits; at most 64 bits are read")
    return number


def _message_from(facts: Any, kinds: Mapping[str, type] | None = None) -> Message:
    if not isinstance(facts, dict):
        raise TypeError("not an object")
    kind = (kinds or _kinds()).get(str(facts.get("type")))
    if kind is None:
        raise KeyError(f"no message is called {facts.get('type')!r}")
    hints = _hints(kind)
    given = {name: _restore_value(hints[name], name, value) for name, value in facts.items() if name in hints}
    return typing.cast(Message, kind(**given))


def _restore_value(kind: Any, name: str, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin is types.UnionType:
        parts = typing.get_args(kind)
        if value is None and types.NoneType in parts:
            return None
        if isinstance(value, dict):
            return _message_from(value, {part.__name__: part for part in parts})
        kind = next(part for part in parts if part is not types.NoneType)
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TypeError(f"{name} = {value!r} is not a list of strings")
        return tuple(_text(item) for item in value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise TypeError(f"{name} = {value!r} is not a map of strings")
        return {_text(key): _text(item) for key, item in value.items()}
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise TypeError(f"{name} = {value!r} is not {kind.__name__}")
    if kind in (int, float) and name not in MAY_DIVERGE:
        _check_bounds(name, value)
    return _text(value) if kind is str else value


def _check_bounds(name: str, value: Any) -> None:
    low = 0 if name in FROM_ZERO else NO_STEP if name == "step" else -math.inf
    if not low <= value or (type(value) is float and not abs(value) <= MOST):
        raise ValueError(f"{name} = {value!r} is beyond what can be")


def _text(value: str) -> str:
    """Half a character (a lone surrogate, which JSON can spell) cannot be written anywhere."""
    value.encode()
    return value


@cache
def _kinds() -> dict[str, type]:
    unions = (messages.ToAgent, messages.ToController, messages.FromWorkerMessage)
    return {kind.__name__: kind for union in unions for kind in typing.get_args(union)}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
