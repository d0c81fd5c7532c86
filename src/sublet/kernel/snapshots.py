"""The kernel at rest: all that it knows as JSON, and a kernel that goes on from there.

A start reads a snapshot and the events after it, instead of the whole history. The content is `facts` of each part of
the kernel, beside its fields; here is the way back. Only JSON, only names: reading one runs no code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sublet.domain.budget import Budget, Limit
from sublet.domain.job import Job, Pauses, Speed
from sublet.domain.offer import Offer
from sublet.errors import BadInput
from sublet.kernel.kernel import Kernel
from sublet.kernel.values_json import Unrecorded, from_plain

SpeedOf = Callable[[Job], Speed]
PausesOf = Callable[[Job], Pauses | None]
K = TypeVar("K", bound=Kernel)


def version_of_snapshot(facts: Mapping[str, Any]) -> int:
    """Version of the kernel that wrote it."""
    return int(facts.get("kernel", 0))


def kernel_from_snapshot(
    facts: Mapping[str, Any], *, speed_of: SpeedOf | None = None, pauses_of: PausesOf | None = None
) -> Kernel:
    """A kernel that knows what `Kernel.facts` told.

    How fast a job goes is asked of `speed_of`, what a change costs it of `pauses_of`, where it is not `restart_s`.
    """
    return kind_from_snapshot(facts, Kernel, speed_of=speed_of, pauses_of=pauses_of)


def kind_from_snapshot(
    facts: Mapping[str, Any], kind: type[K], *, speed_of: SpeedOf | None = None, pauses_of: PausesOf | None = None
) -> K:
    """The same, of this kind."""

    def job_from(text: Mapping[str, Any]) -> Job:
        job: Job = from_plain(Job, text)
        speed = Unrecorded() if speed_of is None else speed_of(job)
        return replace(job, speed=speed, pauses=None if pauses_of is None else pauses_of(job))

    try:
        supply = facts["supply"]
        kernel = kind(
            [from_plain(Offer, offer) for offer in supply["offers"]],
            limits={offer_id: from_plain(Limit, limit) for offer_id, limit in supply["limits"].items()},
            quotas=supply["quotas"],
            budget=from_plain(Budget, supply["budget"]),
        )
        kernel.restore(facts, job_from)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput("snapshot", f"is not one of a kernel ({error!r})") from error
    return kernel
