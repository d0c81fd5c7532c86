"""How long spot instances last: losses per instance-hour, with an interval, per zone and pooled.

Everything available is taken to be held, so a fall from n to m is n - m losses. Two things make this a lower bound. A
fall and a rise between two rows cancel. A trace of kind availability or launch probe held nothing, so a fall there only
says that no more would have been given (`observed` is False).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.market.spot import FLEET, PREEMPTION, SpotTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """Losses against the time that instances were held.

    The interval is exact if instances are lost independently. They are not when `losses` is well above `falls`: then
    `bulk_interval_per_h` is nearer the truth, which takes falls as independent and their mean size as given.
    """

    losses: int  # instances
    falls: int  # instants at which at least one was lost
    launches: int  # instances at the start and every rise
    instance_h: float
    per_h: float | None  # None = nothing was ever held
    interval_per_h: tuple[float, float]
    bulk_interval_per_h: tuple[float, float]
    mean_available: float  # instances
    mean_run_h: float | None  # of one instance, cut off at the ends of the record


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHazard:
    """The hazard of a trace, of all zones together and of each."""

    trace: str
    confidence: float
    observed: bool  # whether falls were preemptions of instances that were held
    pooled: Hazard
    zones: Mapping[str, Hazard]


def trace_hazard(trace: SpotTrace, *, confidence: float = 0.95) -> TraceHazard:
    """Count falls and instance-hours of a trace, over the time that each zone was recorded."""
    counts = {zone: _count(trace, zone) for zone in trace.zones}
    return TraceHazard(
        trace=trace.name,
        confidence=confidence,
        observed=trace.kind.startswith((PREEMPTION, FLEET)),
        pooled=_hazard(counts.values(), confidence),
        zones={zone: _hazard([count], confidence) for zone, count in counts.items()},
    )


def mean_available_share(trace: SpotTrace) -> float:
    """Mean of available / max_available over all zones and their recorded time, from 0 to 1."""
    counts = [_count(trace, zone) for zone in trace.zones]
    most_h = trace.max_available * sum(count.recorded_h for count in counts)
    return sum(count.instance_h for count in counts) / most_h if most_h else 0.0


def poisson_interval(events: int, exposure: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """The exact (Garwood) interval for the rate of a Poisson process that showed `events` in `exposure`.

    >>> low, high = poisson_interval(10, 1.0)
    >>> round(low, 2), round(high, 2)
    (4.8, 18.39)
    """
    from scipy.special import gammaincinv  # scipy takes a quarter of a second to import; few callers need it

    if not 0 < confidence < 1:
        raise InvalidValue("confidence", confidence, "between 0 and 1")
    if events < 0 or exposure < 0:
        raise InvalidValue("events, exposure", (events, exposure), "at least 0")
    if exposure == 0:
        return 0.0, math.inf
    tail = (1 - confidence) / 2
    low = float(gammaincinv(events, tail)) if events else 0.0
    return low / exposure, float(gammaincinv(events + 1, 1 - tail)) / exposure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    losses: int
    falls: int
    launches: int
    instance_h: float
    recorded_h: float


def _count(trace: SpotTrace, zone: str) -> _Count:
    steps, end_s = trace.series[zone], trace.end_s[zone]
    held_s = np.diff(np.append(steps.t_s, end_s))
    moves = np.diff(steps.value)
    return _Count(
        losses=int(-moves[moves < 0].sum()),
        falls=int((moves < 0).sum()),
        launches=int(steps.value[0] + moves[moves > 0].sum()),
        instance_h=float(steps.value @ held_s) / SECONDS_PER_H,
        recorded_h=end_s / SECONDS_PER_H,
    )


def _hazard(counts: Iterable[_Count], confidence: float) -> Hazard:
    zones = list(counts)
    losses, falls = sum(zone.losses for zone in zones), sum(zone.falls for zone in zones)
    launches, instance_h = sum(zone.launches for zone in zones), sum(zone.instance_h for zone in zones)
    low, high = poisson_interval(falls, instance_h, confidence=confidence)
    bulk = losses / falls if falls else 1.0
    return Hazard(
        losses=losses,
        falls=falls,
        launches=launches,
        instance_h=instance_h,
        per_h=losses / instance_h if instance_h else None,
        interval_per_h=poisson_interval(losses, instance_h, confidence=confidence),
        bulk_interval_per_h=(low * bulk, high * bulk),
        # Each zone over its own record, then added: zones stand side by side.
        mean_available=sum(zone.instance_h / zone.recorded_h for zone in zones if zone.recorded_h),
        # Little's law: time held / number of launches, whichever instance a fall takes.
        mean_run_h=instance_h / launches if launches else None,
    )
