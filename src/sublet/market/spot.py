"""How many spot instances could be held, and when: availability traces and their one file format.

A file has the columns `t_s,zone,available` and states availability: `available` instances of the zone can be held from
`t_s` until the zone's next row. Simulators exist that read the same files the other way round (1 = preempted), so
whoever reads a file says which it is; polarity.py looks for signs that the answer was wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sublet.data.csvfile import Bounds, FloatArray, IntArray, TextTable, read_columns
from sublet.domain.quantity import at_least, named, positive, whole
from sublet.errors import BadInput, InvalidValue, UnknownName
from sublet.market.steps import Steps

__all__ = ["Change", "Polarity", "SpotTrace", "inverted", "read_trace"]

Polarity = Literal["availability", "preempted"]

MOST_INSTANCES = 1_000_000  # of one kind in one zone; more is another column read by mistake
SAME_TICK = 1.05  # rows whose distances vary by less are ticks of a clock; a change list has no such rhythm


class Change(NamedTuple):
    """From `t_s` on, `available` instances can be held in `zone`."""

    t_s: float
    zone: str
    available: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpotTrace:
    """Instances that could be held in each zone, from 0 to `span_s`. Before a zone's first row it is 0."""

    name: str
    series: Mapping[str, Steps] = field(repr=False)  # zone -> instances
    end_s: Mapping[str, float] = field(repr=False)  # zone -> when its record ends, at most span_s
    span_s: float
    max_available: int  # how many were asked for in a zone, or the most ever seen
    gpu: str = ""
    gpus_per_instance: int | None = None  # None = the source does not say
    kind: str = ""
    source: str = ""
    licence: str = ""
    repeat: bool = False  # start again when it has ended

    def __post_init__(self) -> None:
        named("trace name", self.name)
        positive("span_s", self.span_s)
        whole("max_available", self.max_available)
        if self.gpus_per_instance is not None:
            whole("gpus_per_instance", self.gpus_per_instance, 1)
        if not self.series or set(self.series) != set(self.end_s):
            raise InvalidValue("end_s", sorted(self.end_s), f"one for each of the zones {sorted(self.series)}")
        for zone, steps in self.series.items():
            named("zone", zone)
            at_least(f"first t_s of {zone}", float(steps.t_s[0]), 0.0)
            if steps.value.min() < 0 or steps.value.max() > self.max_available:
                seen = f"{steps.value.min()} to {steps.value.max()}"
                raise InvalidValue(f"instances in {zone}", seen, f"between 0 and max_available {self.max_available}")
            if not steps.t_s[-1] <= self.end_s[zone] <= self.span_s:
                allowed = f"between the last row at {steps.t_s[-1]:g} and span_s {self.span_s:g}"
                raise InvalidValue(f"end_s of {zone}", self.end_s[zone], allowed)

    @property
    def zones(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(self.series)

    def value_at(self, zone: str, t_s: float) -> int:
        """Instances that can be held; past the end the last value stays, or the trace starts again with `repeat`."""
        if zone not in self.series:
            raise UnknownName("zone", zone, self.series)
        local_s = t_s % self.span_s if self.repeat else t_s
        return self.series[zone].at(local_s, before=0)

    def ended(self, t_s: float, zone: str = "") -> bool:
        """Whether what `value_at` says is no longer recorded, in one zone or in all."""
        if zone and zone not in self.series:
            raise UnknownName("zone", zone, self.series)
        return not self.repeat and t_s >= (self.end_s[zone] if zone else self.span_s)

    def events(self, start_s: float, end_s: float) -> Iterator[Change]:
        """The state of every zone at `start_s`, then every change before `end_s`, in order of time.

        Only real changes: a row that repeats the value before it is none. With `repeat`, `end_s` may be infinite.
        """
        if not start_s < end_s:
            return
        state = {zone: self.value_at(zone, start_s) for zone in self.zones}
        for zone, available in state.items():
            yield Change(start_s, zone, available)
        for change in self._rows(start_s, end_s):
            if state[change.zone] != change.available:
                state[change.zone] = change.available
                yield change

    def per_tick(self, tick_s: float) -> IntArray:
        """Instances in all zones together at 0, tick_s, 2 tick_s ... before the end."""
        positive("tick_s", tick_s)
        t_s_T = np.arange(0.0, self.span_s, tick_s)  # T ticks
        total_T = np.zeros(len(t_s_T), dtype=np.int64)
        for steps in self.series.values():
            total_T += steps.many(t_s_T, before=0)
        return total_T

    def _rows(self, start_s: float, end_s: float) -> Iterator[Change]:
        if not self.repeat:
            yield from self._merged(start_s, end_s)
            return
        cycle = math.floor(start_s / self.span_s)
        while (zero_s := cycle * self.span_s) < end_s:
            if zero_s > start_s:
                yield from (Change(zero_s, zone, self.value_at(zone, 0.0)) for zone in self.zones)
            last_s = min(self.span_s, end_s - zero_s)
            for t_s, zone, available in self._merged(max(0.0, start_s - zero_s), last_s):
                yield Change(zero_s + t_s, zone, available)
            cycle += 1

    def _merged(self, start_s: float, end_s: float) -> Iterator[Change]:
        parts = [steps.between(start_s, end_s) for steps in self.series.values()]
        t_s = np.concatenate([part[0] for part in parts])
        available = np.concatenate([part[1] for part in parts])
        zone = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        for row in np.lexsort((zone, t_s)):
            yield Change(float(t_s[row]), self.zones[zone[row]], int(available[row]))


def inverted(trace: SpotTrace) -> SpotTrace:
    """The trace with 0 and 1 exchanged. Counts cannot be inverted: nothing says out of how many they are."""
    if trace.max_available != 1:
        raise InvalidValue("polarity", "preempted", f"availability: {trace.name} counts up to {trace.max_available}")
    series = {zone: Steps(t_s=steps.t_s, value=1 - steps.value) for zone, steps in trace.series.items()}
    return replace(trace, series=series)


def read_trace(
    path: str | Path,
    *,
    polarity: Polarity,
    name: str = "",
    span_s: float | None = None,
    max_available: int | None = None,
    repeat: bool = False,
) -> SpotTrace:
    """A file in the format above. `polarity` says what its 1 means; the trace always states availability.

    A zone whose rows keep a rhythm lasts one tick past its last row; a list of changes ends with its last row.
    """
    if polarity not in ("availability", "preempted"):
        raise InvalidValue("polarity", polarity, "availability (1 = can be held) or preempted (1 = cannot)")
    table = read_columns(path, ("t_s", "zone", "available"))
    if len(table) == 1:
        raise BadInput(
            path, "one row is no trace", line=2, hint="give at least two rows: a start and a change or an end"
        )
    t_s_R = table.floats("t_s", Bounds(least=0))  # R rows
    available_R = table.ints("available", Bounds(least=0, most=MOST_INSTANCES))
    series, end_s = {}, {}
    for zone, rows in _rows_by_zone(table).items():
        t_s = t_s_R[rows]
        steps_s = np.diff(t_s)
        if (steps_s <= 0).any():
            raise table.refusal(int(rows[int((steps_s <= 0).argmax()) + 1]), f"t_s does not rise in zone {zone}")
        series[zone] = Steps(t_s=t_s, value=available_R[rows]).compact()
        end_s[zone] = float(t_s[-1]) + _tick_s(steps_s)
    last_s, most = max(end_s.values()), int(available_R.max())
    if last_s <= 0:
        raise BadInput(path, "all rows are at one instant", hint="give at least two instants")
    if span_s is not None and span_s < t_s_R.max():
        raise InvalidValue("span_s", span_s, f"at least {t_s_R.max():g}, the time of the last row")
    span = last_s if span_s is None else span_s
    trace = SpotTrace(
        name=name or Path(path).name.removesuffix(".gz").removesuffix(".csv") or "trace",
        series=series,
        end_s={zone: min(end, span) for zone, end in end_s.items()},
        span_s=span,
        max_available=max(most, 1) if max_available is None else max_available,
        source=str(path),
        repeat=repeat,
    )
    return trace if polarity == "availability" else inverted(trace)


def _rows_by_zone(table: TextTable) -> dict[str, IntArray]:
    """Row numbers of each zone, zones in order of appearance."""
    table.check_names("zone")
    column = table.columns["zone"]
    codes = {zone: code for code, zone in enumerate(dict.fromkeys(column))}
    code_R = np.fromiter((codes[zone] for zone in column), dtype=np.int64, count=len(column))
    order = np.argsort(code_R, kind="stable")
    parts = np.split(order, np.searchsorted(code_R[order], np.arange(1, len(codes))))
    return dict(zip(codes, parts, strict=True))


def _tick_s(steps_s: FloatArray) -> float:
    """The rhythm of the rows, 0 where there is none. The median forgives a gap in the record."""
    if not steps_s.size:
        return 0.0
    tick_s = float(np.median(steps_s))
    regular = np.mean((steps_s <= tick_s * SAME_TICK) & (steps_s >= tick_s / SAME_TICK))
    return tick_s if regular > 0.9 else 0.0  # noqa: PLR2004 - nearly all of them
