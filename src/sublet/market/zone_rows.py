"""The rows of a spot trace, zone by zone, made sound: put in order where that is safe, refused where it is not.

Pollers overlap, so rows may come a little late: they are sorted, and a note says so. A large step back is something
else, two records in one file, and is refused. A record that has a row at every tick must have one at every tick. A tick
or two may be missing, and the value before them goes on; a larger hole is refused, as its content is unknown. Lists of
changes, in which no row repeats the one before, have no holes: silence says that nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sublet.data.csvfile import Bounds, TextTable
from sublet.domain.units import DAY_S
from sublet.errors import BadInput
from sublet.solve.arrays import Floats, Ints

__all__ = ["Holes", "ZoneRows", "notes_from_zones", "zones_from_table"]

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
    """The zones in order of appearance; what cannot be trusted is refused with file and line."""
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
