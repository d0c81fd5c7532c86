"""Replacing a node that keeps its job waiting: only where that is cheaper than to wait for it.

In data-parallel lockstep all workers take the same time for a step, and the slowest says how long that is. They differ
in how much of it each spends on its own work, and how much waiting for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from sublet.domain.units import SECONDS_PER_H

STRAGGLES = 2.5  # times what its peers need: a worker three times as slow is reported, however it is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The slowest of a group, and what it does to the others."""

    worker_id: str
    times: float  # its own work, against that of its median peer
    slowdown: float  # a step as it is, against one without it


def straggler_among(own_s: Mapping[str, float], step_s: float) -> Straggler | None:
    """The worker that needs far longer than its peers for its own part of a step of `step_s`; None = there is none.

    >>> straggler_among({"a": 1.0, "b": 1.1, "c": 3.6}, 4.0).worker_id
    'c'
    """
    if len(own_s) < 2 or step_s <= 0.0:  # noqa: PLR2004 - alone, none is slower than others
        return None
    slowest = max(own_s, key=lambda worker_id: own_s[worker_id])
    peers_s = median(seconds for worker_id, seconds in own_s.items() if worker_id != slowest)
    if peers_s <= 0.0 or (times := own_s[slowest] / peers_s) < STRAGGLES:
        return None
    without_s = max(step_s - (own_s[slowest] - peers_s), peers_s)
    return Straggler(worker_id=slowest, times=times, slowdown=max(step_s / without_s, 1.0))


def saved_by_replacing_s_usd(
    *, left_s: float, slowdown: float, pause_s: float, boot_s: float, job_usd_per_h: float, node_usd_per_h: float
) -> tuple[float, float]:
    """Seconds and dollars that another node saves: it boots beside the slow one, then all pause, then all are faster.

    `left_s` is how long the job takes if nothing is done. Below zero, it costs that.

    >>> saved_by_replacing_s_usd(
    ...     left_s=36_000, slowdown=3.0, pause_s=60, boot_s=240, job_usd_per_h=4.0, node_usd_per_h=1.0)[1] > 20
    True
    """
    slow_s = min(boot_s, left_s)
    takes_s = slow_s + pause_s + (left_s - slow_s) / slowdown
    usd = ((left_s - takes_s) * job_usd_per_h - boot_s * node_usd_per_h) / SECONDS_PER_H
    return left_s - takes_s, usd
