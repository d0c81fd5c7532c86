"""Messages as lines of JSON: `{"type": "Meet", "generation": 3, ...}` and back.

A line that is too long or too deep, not JSON, of an unknown type, with a missing or ill-typed field or with a number
beyond its bounds is refused with BadInput, whatever its bytes are. An unknown field is ignored, so that a newer peer
may say more.

Every text of a message that a worker or an agent says is cut where it is too long (`shortened`): what is kept of their
words is bounded here, whatever is done with them. Orders, and what a worker has printed, are as they were said.

A part of a file may go as a *frame*: `#5 {"type": "Part", ...}`, and after the end of that line 5 bytes as they are.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from sublet.errors import BadInput
from sublet.wire import messages
from sublet.wire.files import Part
from sublet.wire.messages import Profile

LONGEST_TEXT = 200  # characters: enough to see what it was, too few to fill a disk with
LONGEST_WORDS = 8_192  # characters of a peer's own words: as many as the last lines of an output may have


def plain_text(text: object) -> str:
    """One line: whatever is not printable is escaped, and the rest of a long one is left out."""
    whole = str(text)
    cut = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole[: LONGEST_TEXT + 1])
    return cut if len(cut) <= LONGEST_TEXT else cut[: LONGEST_TEXT - 3] + "..."


def shortened(text: str, most: int = LONGEST_WORDS) -> str:
    """As it is, or its begin and its end, with how much is left out between them.

    It is cut between lines, or between words where it has one line: half a secret would not be hidden.

    >>> shortened("what was " + "very " * 10 + "long", 20)
    'what was ... 46 characters left out ... very long'
    """
    if len(text) <= most:
        return text
    begin, end = text[: most // 2], text[-(most // 2) :]
    between = "\n" if "\n" in begin and "\n" in end else " "
    begin, end = begin.rpartition(between)[0], end.partition(between)[2]
    left_out = f"... {len(text) - len(begin) - len(end):,} characters left out ..."
    return between.join(part for part in (begin, left_out, end) if part)


LONGEST_LINE = 1 << 20  # bytes; far beyond any message, short of what a hostile peer could fill memory with
MOST_DIGITS = 20  # of a whole number: a sign and 64 bits
HIGHEST = (1 << 63) - 1
MOST = 1e15  # of anything that is measured: seconds, samples
MAY_DIVERGE = frozenset({"loss", "noise"})  # training may: these can be any number, and none
# What is billed, or becomes a plan: counted from 0. Others may be below (a signal, an end that is over, "not yet").
FROM_ZERO = frozenset(
    {"done", "work", "redone_steps", "formed_s", "state_s", "seconds", "blocked_s", "size_bytes", "micro_batch"}
    | {"pieces", "samples", "data_s", "compute_s", "wait_s", "update_s", "memory_bytes", "most_samples"}
    | {"batch_initial", "batch_low", "batch_high", "offset", "ago_s", "read_s"}
    | {"moved_bytes", "gave_bytes", "weight_bytes", "moment_bytes", "device_bytes", "beside_bytes"}
    | {"met_s", "agree_s", "sum_s", "keep_s", "idle_s"}
    | {"usd", "resizes", "preemptions"}
    | {"busy", "memory_of_bytes"}
)
NO_STEP = -1  # where no checkpoint is left, or none was written yet
Message = messages.ToAgent | messages.ToController | messages.FromWorkerMessage
FRAME = b"#"
SIZE_DIGITS = 8  # of the length of a frame
AS_PRINTED = "data"  # the field with what a worker has printed; it is kept by its own bounds


def to_line(message: Message) -> bytes:
    """One line, ending in a newline."""
    return _ENCODER.encode(_plain(message)).encode() + b"\n"


def to_frame(part: Part) -> bytes:
    """A line, and after it the data as they are."""
    return b"#%d " % len(part.data) + to_line(Part(digest=part.digest)) + part.data if part.data else to_line(part)


def bytes_after(line: bytes) -> int:
    """How many bytes belong to this line, after its end."""
    digits = line[1 : SIZE_DIGITS + 2].partition(b" ")[0] if line.startswith(FRAME) else b""
    return int(digits) if digits.isdigit() and len(digits) <= SIZE_DIGITS else 0


def from_line(line: bytes) -> Message:
    """The message that `to_line` or `to_frame` wrote."""
    if len(line) > LONGEST_LINE:
        raise BadInput("message", f"{len(line)} bytes long; at most {LONGEST_LINE} are read")
    try:
        if line.startswith(FRAME):
            return _part_from(line)
        text = line.decode(json.detect_encoding(line), "surrogatepass")  # as json.loads reads bytes
        return _message_from(_DECODER.decode(text), _kinds())
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


# ---------------------------------------------------------------------- writing: what to do with a field is found once


def _plain(message: Any) -> dict[str, Any]:
    kind: type = type(message)
    facts: dict[str, Any] = {"type": kind.__name__}
    for name, write in _writers(kind):
        value = getattr(message, name)
        facts[name] = value if write is None else write(value)
    return facts


@cache
def _writers(kind: type) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _writer(hints[field.name])) for field in dataclasses.fields(kind))


def _writer(hint: Any) -> Callable[[Any], Any] | None:
    """How a field becomes JSON; None where it is as it is."""
    if _is_map(hint):
        return dict
    if hint is bytes:
        return lambda value: base64.b64encode(value).decode()
    if any(dataclasses.is_dataclass(part) for part in (hint, *typing.get_args(hint))):
        return lambda value: None if value is None else _plain(value)
    return None


# ---------------------------------------------------------------------- reading: nothing is believed


def _part_from(frame: bytes) -> Part:
    header, _, data = frame.partition(b"\n")
    part = _message_from(_DECODER.decode(header.partition(b" ")[2].decode()), {"Part": Part})
    if len(data) != bytes_after(header) or not isinstance(part, Part) or part.data:
        raise ValueError(f"a frame of {len(data)} bytes that is not as its header says")
    return Part(digest=part.digest, data=data)


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS or abs(number := int(digits)) > HIGHEST:
        raise ValueError(f"a whole number of {len(digits)} digits; at most 64 bits are read")
    return number


_ENCODER, _DECODER = json.JSONEncoder(separators=(",", ":")), json.JSONDecoder(parse_int=_whole)


def _message_from(facts: Any, kinds: Mapping[str, type]) -> Message:
    if not isinstance(facts, dict):
        raise TypeError("not an object")
    kind = kinds.get(str(facts.get("type")))
    if kind is None:
        raise KeyError(f"no message is called {facts.get('type')!r}")
    readers = _readers(kind)
    given = {name: readers[name](value) for name, value in facts.items() if name in readers}
    return typing.cast(Message, kind(**given))


@cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    text = _cut_text if kind in _of_peers() else _text
    hints = typing.get_type_hints(kind).items()
    return {name: _reader(name, hint, _text if name == AS_PRINTED else text) for name, hint in hints}


def _reader(name: str, hint: Any, text: Callable[[str], str]) -> Callable[[Any], Any]:
    """The function that makes a field of JSON; TypeError or ValueError where it is not what it should be."""
    if typing.get_origin(hint) is types.UnionType:
        return _union_reader(name, typing.get_args(hint), text)
    if typing.get_origin(hint) is tuple:
        lists: dict[Any, Callable[[str, Any], Any]] = {
            int: _numbers_from,
            float: _seconds_from,
            str: partial(_texts_from, text=text),
        }
        return partial(lists[typing.get_args(hint)[0]], name)
    if _is_map(hint):
        return partial(_map_from, name, text=text)
    if hint is bytes:
        return lambda value: base64.b64decode(_plain_reader(name, str, _text)(value), validate=True)
    return _plain_reader(name, hint, text)


def _union_reader(name: str, parts: tuple[Any, ...], text: Callable[[str], str]) -> Callable[[Any], Any]:
    may_be_none, kinds = types.NoneType in parts, {part.__name__: part for part in parts}
    other = _plain_reader(name, next(part for part in parts if part is not types.NoneType), text)

    def read(value: Any) -> Any:
        if value is None and may_be_none:
            return None
        return _message_from(value, kinds) if isinstance(value, dict) else other(value)

    return read


def _plain_reader(name: str, kind: Any, text: Callable[[str], str]) -> Callable[[Any], Any]:
    bounded = kind in (int, float) and name not in MAY_DIVERGE
    low = 0 if name in FROM_ZERO else NO_STEP if name == "step" else -math.inf

    def read(value: Any) -> Any:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise TypeError(f"{name} = {value!r} is not {kind.__name__}")
        if bounded and (not low <= value or (kind is float and not abs(value) <= MOST)):
            raise ValueError(f"{name} = {value!r} is beyond what can be")
        return text(value) if kind is str else value

    return read


def _texts_from(name: str, value: Any, text: Callable[[str], str]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} = {value!r} is not a list of strings")
    return tuple(text(item) for item in value)


def _numbers_from(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise TypeError(f"{name} = {value!r} is not a list of whole numbers from 0 on")
    return tuple(value)


def _seconds_from(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(type(item) in (int, float) and 0 <= item <= MOST for item in value):
        raise TypeError(f"{name} = {value!r} is not a list of numbers from 0 on")
    return tuple(float(item) for item in value)


def _map_from(name: str, value: Any, text: Callable[[str], str]) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise TypeError(f"{name} = {value!r} is not a map of strings")
    return {text(key): text(item) for key, item in value.items()}


def _is_map(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _text(value: str) -> str:
    """Half a character (a lone surrogate, which JSON can spell) cannot be written anywhere."""
    value.encode()
    return value


def _cut_text(value: str) -> str:
    return shortened(_text(value))


@cache
def _of_peers() -> frozenset[type]:
    """Messages of workers and agents, with the types inside of them."""
    said = (messages.ToController, messages.FromWorkerMessage)
    return frozenset({kind for union in said for kind in typing.get_args(union)} | {Profile})


@cache
def _kinds() -> dict[str, type]:
    unions = (messages.ToAgent, messages.ToController, messages.FromWorkerMessage)
    return {kind.__name__: kind for union in unions for kind in typing.get_args(union)}
