"""The journal: a kernel's life as lines of JSON, and that life lived again.

The first line says what could be rented; each further line is one event and the orders that followed it. Since the
kernel depends on nothing else, feeding the events to a new one must give the same orders: `replay` insists on it. That
holds within one version of the kernel; what another version recorded is followed, not decided again (following.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sublet.domain.actions import Action
from sublet.domain.budget import Budget, Limit
from sublet.domain.events import Event
from sublet.domain.offer import Offer
from sublet.errors import BadInput, InvariantBroken
from sublet.kernel.kernel import KERNEL_VERSION, Kernel
from sublet.kernel.values_json import action_from_json, event_from_json, plain, restored, tagged

__all__ = [
    "JOURNAL_VERSION",
    "event_from_json",
    "header_line",
    "kernel_from_header",
    "kind_from_header",
    "line_from",
    "recorded_from",
    "replay",
    "version_of",
]

JOURNAL_VERSION = 1
K = TypeVar("K", bound=Kernel)


def header_line(
    offers: Sequence[Offer], limits: Mapping[str, Limit], budget: Budget, quotas: Mapping[str, int] | None = None
) -> str:
    """The first line of a journal: the arguments of the kernel."""
    facts = {"offers": offers, "limits": limits, "budget": budget, "quotas": quotas or {}}
    return json.dumps({"journal": JOURNAL_VERSION, "kernel": KERNEL_VERSION, **plain(facts)}, separators=(",", ":"))


def line_from(event: Event, actions: Sequence[Action]) -> str:
    """One event and the orders that followed, as one line."""
    return json.dumps({"event": tagged(event), "actions": [tagged(a) for a in actions]}, separators=(",", ":"))


def recorded_from(line: str) -> tuple[Event, list[Action]]:
    """The event and the orders that `line_from` wrote down."""
    facts = json.loads(line)
    return event_from_json(facts["event"]), [action_from_json(action) for action in facts["actions"]]


def version_of(header: str) -> int:
    """Of the kernel that wrote a journal; 0 = one from before kernels had versions, or no journal at all."""
    try:
        return int(json.loads(header).get("kernel", 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def replay(lines: Iterable[str], *, source: str = "journal", kernel: Kernel | None = None) -> Kernel:
    """Live a recorded life again; raise InvariantBroken at the first order that differs from the recorded one.

    With `kernel` the lines go on from there, and there is no first line among them.
    """
    for number, line in enumerate(lines, start=1):
        try:
            facts = json.loads(line)
            if kernel is None:
                kernel = kernel_from_header(facts)
                continue
            event, recorded = event_from_json(facts["event"]), facts["actions"]
        except (ValueError, KeyError, TypeError, AttributeError, BadInput) as error:
            why = error.why if isinstance(error, BadInput) else f"not a line of a journal ({error!r})"
            raise BadInput(source, why, line=number) from error
        orders = [tagged(action) for action in kernel.handle(event)]
        if orders != recorded:
            raise InvariantBroken("a replay gives the same orders", f"line {number}: recorded {recorded}, now {orders}")
    if kernel is None:
        raise BadInput(source, "it is empty")
    return kernel


def kernel_from_header(facts: Mapping[str, Any]) -> Kernel:
    """The kernel that the first line of a journal tells of, before its first event."""
    return kind_from_header(facts, Kernel)


def kind_from_header(facts: Mapping[str, Any], kind: type[K]) -> K:
    """The same, of this kind."""
    if facts.get("journal") != JOURNAL_VERSION:
        raise BadInput("journal", f"version {facts.get('journal')!r} is not {JOURNAL_VERSION}", line=1)
    offers = [restored(Offer, offer) for offer in facts["offers"]]
    limits = {offer_id: restored(Limit, limit) for offer_id, limit in facts["limits"].items()}
    return kind(offers, limits=limits, quotas=facts["quotas"], budget=restored(Budget, facts["budget"]))
