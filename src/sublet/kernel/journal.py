"""The journal: a kernel's life as lines of JSON, and that life lived again.

The first line says what could be rented; each further line is one event and the orders that followed it. Since the
kernel depends on little else, feeding the events to a new one must give the same orders: `replay` insists on it. That
holds within one version of the kernel; what another version recorded is followed, not decided again (following.py). How
fast jobs go is not recorded: whether the survivors of a loss can train is taken from the orders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sublet.domain.actions import Action
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import Event, JobChanged, JobSubmitted
from sublet.domain.job import Job, Speed
from sublet.domain.offer import Offer
from sublet.errors import BadInput, InvariantBroken
from sublet.kernel.kernel import KERNEL_VERSION, Kernel
from sublet.kernel.values_json import action_from_json, event_from_json, from_plain, to_plain, to_tagged

__all__ = [
    "JOURNAL_VERSION",
    "Hear",
    "Step",
    "event_from_json",
    "header_line",
    "kernel_from_header",
    "kind_from_header",
    "line_from",
    "open_journal",
    "relive",
    "replay",
    "steps_from",
    "version_of",
]

JOURNAL_VERSION = 1
K = TypeVar("K", bound=Kernel)


def header_line(
    offers: Sequence[Offer], limits: Mapping[str, Limit], budget: Budget, quotas: Mapping[str, int] | None = None
) -> str:
    """The first line of a journal: the arguments of the kernel."""
    facts = {"offers": offers, "limits": limits, "budget": budget, "quotas": quotas or {}}
    return json.dumps({"journal": JOURNAL_VERSION, "kernel": KERNEL_VERSION, **to_plain(facts)}, separators=(",", ":"))


def line_from(event: Event, actions: Sequence[Action]) -> str:
    """One event and the orders that followed, as one line."""
    return json.dumps({"event": to_tagged(event), "actions": [to_tagged(a) for a in actions]}, separators=(",", ":"))


def version_of(header: str) -> int:
    """Version of the kernel that wrote a journal; 0 = one from before kernels had versions, or no journal at all."""
    try:
        return int(json.loads(header).get("kernel", 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def replay(lines: Iterable[str], *, source: str = "journal", kernel: Kernel | None = None) -> Kernel:
    """Live a recorded life again; raise InvariantBroken at the first order that differs from the recorded one.

    With `kernel` the lines go on from there, and there is no first line among them.
    """
    kernel, steps = open_journal(lines, source=source, kernel=kernel)
    for _ in relive(steps, kernel.handle):
        pass
    return kernel


def open_journal(
    lines: Iterable[str], *, source: str = "journal", kernel: Kernel | None = None
) -> tuple[Kernel, Iterator[Step]]:
    """The kernel that the first line tells of, before its first event, and the steps after it; or from `kernel` on."""
    rest = iter(lines)
    if kernel is not None:
        return kernel, steps_from(rest, source=source, first=kernel.seen + 2)  # the first line is no event
    header = next(rest, None)
    if header is None:
        raise BadInput(source, "it is empty")
    try:
        kernel = kernel_from_header(json.loads(header))
    except (ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
        why = error.why if isinstance(error, BadInput) else f"not a line of a journal ({error!r})"
        raise BadInput(source, why, line=1) from error
    return kernel, steps_from(rest, source=source, first=2)


def kernel_from_header(facts: Mapping[str, Any]) -> Kernel:
    """The kernel that the first line of a journal tells of, before its first event."""
    return kind_from_header(facts, Kernel)


def kind_from_header(facts: Mapping[str, Any], kind: type[K]) -> K:
    """The same, of this kind."""
    if facts.get("journal") != JOURNAL_VERSION:
        raise BadInput("journal", f"version {facts.get('journal')!r} is not {JOURNAL_VERSION}", line=1)
    offers = [from_plain(Offer, offer) for offer in facts["offers"]]
    limits = {offer_id: from_plain(Limit, limit) for offer_id, limit in facts["limits"].items()}
    return kind(offers, limits=limits, quotas=facts["quotas"], budget=from_plain(Budget, facts["budget"]))


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
    """Each step once it was heard; InvariantBroken at the first whose orders differ from the recorded ones.

    A kernel of the version that wrote the lines decides again; of another they are followed (`Follower.follow`).
    """
    for step in steps:
        now = list(hear(step.event, step.orders))
        if now != step.orders:
            found = f"line {step.number}: recorded {step.orders}, now {now}"
            raise InvariantBroken("a replay gives the same orders", found)
        yield step
