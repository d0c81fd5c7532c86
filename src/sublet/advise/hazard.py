"""How often spot nodes are taken back, from traces in which they were: per cloud and kind where known, else the middle.

A cloud does not publish this, and few have measured it; so the answer comes with its source and its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from sublet.errors import MissingData
from sublet.market.hazard import trace_hazard
from sublet.market.spot import SpotTrace
from sublet.market.traces import TRACES, load_trace

LONGEST = ("bamboo-p3", "bamboo-gcp", "skynomad-h100", "spothedge-gcp1")  # one trace for each cloud and kind
BUNDLED = ("bamboo-p3", "bamboo-gcp")  # held for hours and lost: what stands for clouds and kinds without a trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """Nodes lost per node-hour, with a range in which it may lie; how many at once traces say in `advise.losses`."""

    per_h: float
    low_per_h: float
    high_per_h: float
    source: str
    traces: tuple[str, ...]  # by which it was measured; none if the offer states it
    share: float = 0.0  # of the nodes held, what one reclaim takes, if the offer states it; traces have their own
    notice_s: float = 0.0  # as the offer states it; price lists state none


@cache
def reclaims_of(cloud: str, gpu: str) -> Reclaims:
    """Reclaims measured for this kind on this cloud, else the geometric mean of all measurements."""
    for name in LONGEST:
        if TRACES[name].cloud == cloud and TRACES[name].gpu == gpu and (found := _measure_trace(name)) is not None:
            return found
    seen = [found for name in BUNDLED if (found := _measure_trace(name)) is not None]
    return Reclaims(
        per_h=math.exp(sum(math.log(found.per_h) for found in seen) / len(seen)),
        low_per_h=min(found.low_per_h for found in seen),
        high_per_h=max(found.high_per_h for found in seen),
        source=f"not measured there: the mean of {' and '.join(BUNDLED)}",
        traces=BUNDLED,
    )


@cache
def known_trace(name: str) -> SpotTrace:
    """A trace by its name, read once; MissingData where it is not here."""
    return load_trace(name)


@cache
def _measure_trace(name: str) -> Reclaims | None:
    """The pooled hazard of a trace; None where the trace is not here."""
    try:
        traced = trace_hazard(known_trace(name))
    except MissingData:
        return None
    pooled = traced.pooled
    if not pooled.per_h:
        return None
    low, high = pooled.bulk_interval_per_h
    return Reclaims(
        per_h=pooled.per_h,
        low_per_h=low,
        high_per_h=high,
        source=f"measured in the trace {name}" + ("" if traced.observed else ", in which nothing was held"),
        traces=(name,),
    )
