"""The journal: a kernel's life as lines of JSON, and that life lived again.

The first line says what could be rented; each further line is one event and the orders that followed it. Since the
kernel depends on nothing else, feeding the events to a new one must give the same orders: `replay` insists on it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from sublet.domain import events
from sublet.domain.actions import Action
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import Event
from sublet.domain.offer import Offer
from sublet.domain.shape import Spread
from sublet.errors import BadInput, InvariantBroken
from sublet.kernel.kernel import Kernel

__all__ = ["JOURNAL_VERSION", "event_from_json", "header_line", "line_from", "replay"]

JOURNAL_VERSION = 1
UNRECORDED = frozenset({"speed", "weighed"})  # models and tables: what followed from them is recorded


class _Unrecorded:
    """The speed of a job in a replay: plans are recorded, so nobody asks how fast it would go."""

    ends: tuple[float, ...] = ()

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        del gpu, spread, done
        return 0.0

    def seconds(self, gpu: str, spread: Spread, done: float, goal: float) -> float:
        del gpu, spread, done, goal
        return math.inf

    def work(self, gpu: str, spread: Spread, done: float, seconds: float) -> float:
        del gpu, spread, seconds
        return done


def header_line(
    offers: Sequence[Offer], limits: Mapping[str, Limit], budget: Budget, quotas: Mapping[str, int] | None = None
) -> str:
    """The first line of a journal: the arguments of the kernel."""
    facts = {"offers": offers, "limits": limits, "budget": budget, "quotas": quotas or {}}
    return json.dumps({"journal": JOURNAL_VERSION, **_plain(facts)}, separators=(",", ":"))


def line_from(event: Event, actions: Sequence[Action]) -> str:
    """One event and the orders that followed, as one line."""
    return json.dumps({"event": _tagged(event), "actions": [_tagged(a) for a in actions]}, separators=(",", ":"))


def event_from_json(facts: Mapping[str, Any]) -> Event:
    """The event that `line_from` wrote down; a job's speed model is not part of it."""
    kind = getattr(events, str(facts.get("type")), None)
    if kind not in typing.get_args(Event):
        raise BadInput("journal", f"no event is called {facts.get('type')!r}")
    return typing.cast(Event, _restored(kind, facts))


def replay(lines: Iterable[str], *, source: str = "journal") -> Kernel:
    """Live a recorded life again; raise InvariantBroken at the first order that differs from the recorded one."""
    kernel: Kernel | None = None
    for number, line in enumerate(lines, start=1):
        try:
            facts = json.loads(line)
            if kernel is None:
                kernel = _kernel_from_header(facts)
                continue
            event, recorded = event_from_json(facts["event"]), facts["actions"]
        except (ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
            why = error.why if isinstance(error, BadInput) else f"not a line of a journal ({error!r})"
            raise BadInput(source, why, line=number) from error
        orders = [_tagged(action) for action in kernel.handle(event)]
        if orders != recorded:
            raise InvariantBroken("a replay gives the same orders", f"line {number}: recorded {recorded}, now {orders}")
    if kernel is None:
        raise BadInput(source, "it is empty")
    return kernel


def _kernel_from_header(facts: Mapping[str, Any]) -> Kernel:
    if facts.get("journal") != JOURNAL_VERSION:
        raise BadInput("journal", f"version {facts.get('journal')!r} is not {JOURNAL_VERSION}", line=1)
    offers = [_restored(Offer, offer) for offer in facts["offers"]]
    limits = {offer_id: _restored(Limit, limit) for offer_id, limit in facts["limits"].items()}
    return Kernel(offers, limits=limits, quotas=facts["quotas"], budget=_restored(Budget, facts["budget"]))


def _tagged(value: Event | Action) -> dict[str, Any]:
    return {"type": type(value).__name__, **_plain(value)}


def _plain(value: Any) -> Any:
    """Only what JSON has; a number that it lacks (infinity) becomes its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in UNRECORDED
        }
    raise TypeError(type(value).__name__)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _restored(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        known = hints.keys() - UNRECORDED
        given = {name: _restored(hints[name], item) for name, item in value.items() if name in known}
        if "speed" in hints:
            given["speed"] = _Unrecorded()
        return kind(**given)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        if value is None:
            return None
        return _restored(next(part for part in inner if part is not types.NoneType), value)
    if origin is tuple:
        return tuple(_restored(inner[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _restored(inner[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind}")
    return value
