"""A recorded life, lived again line by line: for journals, for a controller that comes back, for `sublet replay`.

Each listener decides what the events mean. A kernel of the version that wrote the lines must give the recorded orders
(`kernel.handle`); of another version they are taken for granted (`Follower.follow`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sublet.domain.actions import Action
from sublet.domain.events import Event, JobChanged, JobSubmitted
from sublet.domain.job import Job, Speed
from sublet.errors import BadInput, InvariantBroken
from sublet.kernel.values_json import action_from_json, event_from_json

__all__ = ["Hear", "Step", "relive", "steps_from"]

Hear = Callable[[Event, Sequence[Action]], Sequence[Action]]  # an event and what followed then; what follows now


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event and the orders that followed it; `facts` is its line as it stands."""

    number: int
    event: Event
    orders: list[Action]
    facts: Mapping[str, Any]


def steps_from(
    lines: Iterable[str], *, source: str = "journal", first: int = 1, speed_of: Callable[[Job], Speed] | None = None
) -> Iterator[Step]:
    """Read lines, the first of which has this number; how fast a job goes is not in them: `speed_of` may know."""
    for number, line in enumerate(lines, start=first):
        try:
            facts = json.loads(line)
            event = event_from_json(facts["event"])
            orders = [action_from_json(action) for action in facts["actions"]]
        except (ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
            why = error.why if isinstance(error, BadInput) else f"not a line of a journal ({error!r})"
            raise BadInput(source, why, line=number) from error
        if speed_of is not None and isinstance(event, JobSubmitted | JobChanged):
            event = replace(event, job=replace(event.job, speed=speed_of(event.job)))
        yield Step(number=number, event=event, orders=orders, facts=facts)


def relive(steps: Iterable[Step], hear: Hear) -> Iterator[Step]:
    """Each step once it was heard; InvariantBroken at the first whose orders differ from the recorded ones."""
    for step in steps:
        now = list(hear(step.event, step.orders))
        if now != step.orders:
            found = f"line {step.number}: recorded {step.orders}, now {now}"
            raise InvariantBroken("a replay gives the same orders", found)
        yield step
