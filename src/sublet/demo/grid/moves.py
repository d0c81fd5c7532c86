"""Changes of a grid as its workers lived through them: their kinds, and how long they took.

If every member had the part before that it has now, it is a change within parts. If one came from another part, from
the spares or from outside it is one between parts, and with another number of parts it is one of depth. Where no worker
stayed it is a restart: all saved and ended, and others loaded what was saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sublet.demo.grid.diaries import Row

KINDS = ("within", "between", "depth")  # live
RESTART = "restart"
ORDERS = {"ResizeJob": False, "NodeLost": False, "StopJob": True}  # whether it is how a restart begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Seconds on the wall."""

    kind: str
    was: tuple[int, int]
    now: tuple[int, int]
    at_s: float  # of the first micro-batch of the new grid, since `zero_s`
    decided_s: float  # from the order, or the loss, to that: newcomers may have started meanwhile
    paused_s: float  # from the end of the last step of the old grid to that: a step that was cut short is in it


def moves_seen(events: Sequence[Mapping[str, Any]], rows: Sequence[Row], speedup: float, zero_s: float) -> list[Move]:
    """Each change after which a step was made; `zero_s` is when cloud time began, by the clock of the rows."""
    orders = [(zero_s + event["at_s"] / speedup, ORDERS[event["kind"]]) for event in events if event["kind"] in ORDERS]
    found = []
    for old, new in pairwise(_in_order(rows)):
        before = {row.worker: row.place for row in old}
        after = {row.worker: row.place for row in new}
        since_s = min(row.since_s for row in new)
        kind = _kind(old[0].grid, new[0].grid, before, after)
        asked = [at_s for at_s, stops in orders if at_s <= since_s and stops is (kind == RESTART)]
        if before == after or not asked:
            continue
        found.append(
            Move(
                kind=kind,
                was=old[0].grid,
                now=new[0].grid,
                at_s=since_s - zero_s,
                decided_s=since_s - asked[-1],
                paused_s=max(0.0, since_s - max(row.at_s for row in old)),  # a slow writer may be later
            )
        )
    return found


def _in_order(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of each generation, in order of their first steps."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.generation, []).append(row)
    return sorted(found.values(), key=lambda each: min(row.since_s for row in each))


def _kind(
    was: tuple[int, int],
    now: tuple[int, int],
    before: Mapping[str, tuple[int, int]],
    after: Mapping[str, tuple[int, int]],
) -> str:
    if not before.keys() & after.keys():
        return RESTART
    if was[1] != now[1]:
        return "depth"
    stayed = all(worker in before and before[worker][1] == part for worker, (_, part) in after.items())
    return "within" if stayed else "between"
