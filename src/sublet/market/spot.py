"""How many spot instances could be held, and when: availability traces and their one file format.

A file has the columns `t_s,zone,available` and states availability: `available` instances of the zone can be held from
`t_s` until the zone's next row. Simulators exist that read the same files the other way round (1 = preempted), so the
reader of a file says which it is; traces.py looks for signs that the answer was wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sublet.data.csvfile import Bounds, TextTable, read_columns
from sublet.domain.quantity import at_least, named, positive, whole
from sublet.domain.units import DAY_S
from sublet.errors import BadInput, InvalidValue, UnknownName
from sublet.market.steps import Steps
from sublet.solve.arrays import Floats, Ints

Polarity = Literal["availability", "preempted"]

# Kinds of trace: what was done at each tick.
AVAILABILITY = "availability"  # asked for at each tick and given back; says nothing about how long one would have lived
PREEMPTION = "preemption"  # really held: a fall is a preemption, a rise a new launch
FLEET = "fleet size"  # of a group with a fixed target: capacity and the group's own retries, mixed
PROBE = "launch probe"  # as availability, with several asked for at once


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
    notes: tuple[str, ...] = ()  # what was put right or taken on trust when it was read

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

        Only real changes: a row that repeats the value before it is none. With `repeat`, `end_s` may be infinite: it
        ends all the same where no zone ever changes.
        """
        if not start_s < end_s:
            return
        state = {zone: self.value_at(zone, start_s) for zone in self.zones}
        for zone, available in state.items():
            yield Change(start_s, zone, available)
        if self.repeat and all((steps.value == self.value_at(zone, 0.0)).all() for zone, steps in self.series.items()):
            return
        for change in self._rows(start_s, end_s):
            if state[change.zone] != change.available:
                state[change.zone] = change.available
                yield change

    def per_tick(self, tick_s: float) -> Ints:
        """Instances in all zones together at 0, tick_s, 2 tick_s ... before the end."""
        positive("tick_s", tick_s)
        t_s_T = np.arange(0.0, self.span_s, tick_s)  # T ticks
        total_T = np.zeros(len(t_s_T), dtype=np.int64)
        for steps in self.series.values():
            total_T += steps.many(t_s_T, before=0)
        return total_T

    def _rows(self, start_s: float, end_s: float) -> Iterator[Change]:
        if not self.repeat:
            yield from self._merge_zones(start_s, end_s)
            return
        cycle = math.floor(start_s / self.span_s)
        while (zero_s := cycle * self.span_s) < end_s:
            if zero_s > start_s:
                yield from (Change(zero_s, zone, self.value_at(zone, 0.0)) for zone in self.zones)
            last_s = min(self.span_s, end_s - zero_s)
            for t_s, zone, available in self._merge_zones(max(0.0, start_s - zero_s), last_s):
                yield Change(zero_s + t_s, zone, available)
            cycle += 1

    def _merge_zones(self, start_s: float, end_s: float) -> Iterator[Change]:
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
    holes: Holes = "refuse",
) -> SpotTrace:
    """A file in the format above. `polarity` says what its 1 means; the trace always states availability.

    A zone whose rows keep a rhythm lasts one tick past its last row; a list of changes ends with its last row.
    Corrections on the way stand in the notes of the trace.
    """
    if polarity not in ("availability", "preempted"):
        raise InvalidValue("polarity", polarity, "availability (1 = can be held) or preempted (1 = cannot)")
    if holes not in ("refuse", "hold"):
        raise InvalidValue("holes", holes, "refuse or hold (the number before a hole goes on)")
    table = read_columns(path, ("t_s", "zone", "available"))
    if len(table) == 1:
        raise BadInput(
            path, "one row is no trace", line=2, hint="give at least two rows: a start and a change or an end"
        )
    zones = zones_from_table(table, most=max_available, holes=holes)
    end_s = {zone: float(rows.t_s[-1]) + rows.tick_s for zone, rows in zones.items()}
    last_row_s, last_s = max(float(rows.t_s[-1]) for rows in zones.values()), max(end_s.values())
    if last_s <= 0:
        raise BadInput(path, "all rows are at one instant", hint="give at least two instants")
    if span_s is not None and span_s < last_row_s:
        raise InvalidValue("span_s", span_s, f"at least {last_row_s:g}, the time of the last row")
    span = last_s if span_s is None else span_s
    most = max(int(rows.value.max()) for rows in zones.values())
    trace = SpotTrace(
        name=name or Path(path).name.removesuffix(".gz").removesuffix(".csv") or "trace",
        series={zone: Steps(t_s=rows.t_s, value=rows.value).compact() for zone, rows in zones.items()},
        end_s={zone: min(end, span) for zone, end in end_s.items()},
        span_s=span,
        max_available=max(most, 1) if max_available is None else max_available,
        source=str(path),
        repeat=repeat,
        notes=notes_from_zones(zones),
    )
    return trace if polarity == "availability" else inverted(trace)


Holes = Literal["refuse", "hold"]  # hold: the value before a hole goes on through it

MOST_INSTANCES = 1_000_000  # of one kind in one zone; more is another column read by mistake
LONGEST_S = 366 * DAY_S  # of a record: what replays it goes minute by minute; public ones have at most 46 days
SAME_TICK = 1.05  # rows whose distances vary by less are ticks of a clock; a change list has no such rhythm
NEARLY_ALL = 0.9  # of the distances
HARDLY_ANY_TICKS = 3.5  # a distance of up to three ticks: two polls were missed
FAR_BEYOND = 10.0  # times the usual distance, where polls keep no rhythm; and the farthest that a late row steps back
REPEATED_IN_TICKS = 0.05  # of the values, from which on rows in a rhythm are ticks and no busy list of changes
REPEATED_IN_POLLS = 0.5  # and rows without a rhythm are polls
TELLING = 5  # distances, below which nothing can be said about a rhythm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneRows:
    """One zone: times that rise, what is available from each on, the rhythm of the rows (0 = none), and notes."""

    t_s: Floats
    value: Ints
    tick_s: float
    notes: tuple[str, ...]


def zones_from_table(table: TextTable, *, most: int | None, holes: Holes) -> dict[str, ZoneRows]:
    """The zones in order of appearance; what cannot be trusted is refused with file and line.

    Rows a little late are sorted, and a note says so; a large step back is two records in one file. A record with a row
    at every tick may lack one or two. A larger hole is refused. Lists of changes have no holes.
    """
    try:
        t_s_R = table.floats("t_s", Bounds(least=0))  # R rows
        available_R = table.ints("available", Bounds(least=0, most=MOST_INSTANCES))
    except BadInput as error:
        hint = "correct the row, or leave it out: the value before it then goes on"
        raise BadInput(error.source, error.why, line=error.line, hint=hint) from None
    if (late_R := t_s_R > LONGEST_S).any():
        row, hint = (
            int(late_R.argmax()),
            "t_s counts from the start of the record: subtract the first; or cut the record",
        )
        raise table.refusal(row, f"t_s is {t_s_R[row]:.15g}, above {LONGEST_S:,.0f}, the seconds of a year", hint)
    if most is not None and (above_R := available_R > most).any():
        row = int(above_R.argmax())
        hint = "correct the row, or the target if more were asked for"
        raise table.refusal(row, f"available is {available_R[row]}, above the target of {most}", hint)
    return {
        zone: _zone(table, zone, rows, t_s_R[rows], available_R[rows], holes)
        for zone, rows in _rows_by_zone(table).items()
    }


def notes_from_zones(zones: Mapping[str, ZoneRows]) -> tuple[str, ...]:
    """Corrections, each once, with the zones they were found in."""
    where: dict[str, list[str]] = {}
    for zone, rows in zones.items():
        for note in rows.notes:
            where.setdefault(note, []).append(zone)
    return tuple(
        f"{'zone ' + found[0] if len(found) == 1 else f'each of {len(found)} zones'}: {note}"
        for note, found in where.items()
    )


def _zone(table: TextTable, zone: str, rows: Ints, t_s: Floats, value: Ints, holes: Holes) -> ZoneRows:
    notes = []
    if (np.diff(t_s) <= 0).any():
        rows, t_s, value, note = _in_order(table, zone, rows, t_s, value)
        notes.append(note)
    steps_s = np.diff(t_s)
    tick_s = _tick_s(steps_s)
    usual_s = tick_s or (float(np.median(steps_s)) if len(steps_s) else 0.0)
    longest_s = _longest_s(steps_s, value, tick_s)
    gaps = np.flatnonzero(steps_s > longest_s)
    if len(gaps) and holes == "refuse":
        at = int(gaps[0])
        why = f"{steps_s[at]:g} s without a row in zone {zone}, from {t_s[at]:g} to {t_s[at + 1]:g} s"
        hint = "fill the rows in, repeating the number before the hole if it stayed; or cut the trace there"
        raise table.refusal(int(rows[at + 1]), f"{why}, where rows are usually {usual_s:g} s apart", hint)
    if len(gaps):
        one, many = f"1 hole of {steps_s.max():g} s", f"{len(gaps)} holes, {steps_s.max():g} s at most"
        notes.append(f"{one if len(gaps) == 1 else many}; the number before goes on")
    if tick_s and np.isfinite(longest_s):
        short_s = steps_s[(steps_s > 1.5 * tick_s) & (steps_s <= longest_s)]
        if missing := int(np.rint(short_s / tick_s - 1).sum()):
            text = f"missing ticks of {tick_s:g} s: {missing}, two in a row at most"
            notes.append(f"{text}; the number before goes on")
    return ZoneRows(t_s=t_s, value=value, tick_s=tick_s, notes=tuple(notes))


def _in_order(table: TextTable, zone: str, rows: Ints, t_s: Floats, value: Ints) -> tuple[Ints, Floats, Ints, str]:
    """Sorted by time, one row per instant, with a note; refused where that would mix two records."""
    steps_s = np.diff(t_s)
    apart_s = np.abs(steps_s[steps_s != 0])
    back = np.flatnonzero(-steps_s > FAR_BEYOND * (float(np.median(apart_s)) if len(apart_s) else 0.0))
    if len(back):
        at = int(back[0])
        why = f"t_s falls from {t_s[at]:g} to {t_s[at + 1]:g} in zone {zone}: two records in one?"
        raise table.refusal(int(rows[at + 1]), why, "give each record a zone of its own, or sort the rows by t_s")
    late = int((steps_s < 0).sum())
    order = np.argsort(t_s, kind="stable")
    rows, t_s, value = rows[order], t_s[order], value[order]
    again = np.diff(t_s) == 0
    clash = np.flatnonzero(again & (np.diff(value) != 0))
    if len(clash):
        at = int(clash[0])
        first, second = sorted((int(rows[at]), int(rows[at + 1])))
        why = f"t_s is {t_s[at]:g} as in line {table.lines[first]}, and t_s does not rise in zone {zone}"
        numbers = f"available is {value[at]} in one and {value[at + 1]} in the other"
        raise table.refusal(second, f"{why}: {numbers}", "keep one of the two rows")
    kept = np.concatenate(([True], ~again))
    parts = [f"steps back of t_s: {late}; the rows were sorted"] if late else []
    parts += [f"rows that repeat another: {again.sum()}; they were dropped"] if again.any() else []
    return rows[kept], t_s[kept], value[kept], "; ".join(parts)


def _tick_s(steps_s: Floats) -> float:
    """The rhythm of the rows, 0 where there is none. The median forgives a gap in the record."""
    if not steps_s.size:
        return 0.0
    tick_s = float(np.median(steps_s))
    regular = np.mean((steps_s <= tick_s * SAME_TICK) & (steps_s >= tick_s / SAME_TICK))
    return tick_s if regular > NEARLY_ALL else 0.0


def _longest_s(steps_s: Floats, value: Ints, tick_s: float) -> float:
    """The longest time between two rows. A list of changes repeats no value, so that any distance is right."""
    repeated = float(np.mean(np.diff(value) == 0)) if len(steps_s) >= TELLING else 0.0
    if tick_s:
        return HARDLY_ANY_TICKS * tick_s if repeated >= REPEATED_IN_TICKS else np.inf
    return FAR_BEYOND * float(np.median(steps_s)) if repeated >= REPEATED_IN_POLLS else np.inf


def _rows_by_zone(table: TextTable) -> dict[str, Ints]:
    """Row numbers of each zone, zones in order of appearance."""
    table.check_names("zone")
    column = table.columns["zone"]
    codes = {zone: code for code, zone in enumerate(dict.fromkeys(column))}
    code_R = np.fromiter((codes[zone] for zone in column), dtype=np.int64, count=len(column))
    order = np.argsort(code_R, kind="stable")
    parts = np.split(order, np.searchsorted(code_R[order], np.arange(1, len(codes))))
    return dict(zip(codes, parts, strict=True))
