"""Dollars spent on each day, out of the sums that the history has: to the cent what was spent in all.

Between two rows of history what is rented is what it was, so dollars are spread over the time between them: a day
without a row has its part, and so have the hours before midnight.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypedDict

__all__ = ["DayView", "Mark", "days_from"]


class Mark(NamedTuple):
    """A moment, and what was spent in all until then."""

    at: datetime
    usd: float


class DayView(TypedDict):
    """One day, UTC."""

    day: str  # 2026-11-18; "" = before the first row that is not in the archive
    usd: float


def days_from(mark: Callable[[int], Mark], first: int, last: int, now: Mark) -> list[DayView]:
    """Oldest first. `mark` tells of a row by its number, which are without gaps from `first` to `last`.

    Looked at are the rows around each midnight, which are found by halving: logarithmic in the rows, times days.
    """
    if first > last:
        return _spread(Mark(now.at, 0.0), [now])
    began, already_usd = mark(first)
    marks, at = [mark(first)], first
    while (day := mark(at).at.date()) < mark(last).at.date():
        low, high = at, last  # the first row of a later day is above the one and not above the other
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if mark(middle).at.date() <= day else (low, middle)
        marks += [mark(low), mark(high)]
        at = high
    return _spread(Mark(began, already_usd if first > 1 else 0.0), [*marks, mark(last), now])


def _spread(begin: Mark, marks: list[Mark]) -> list[DayView]:
    found: dict[str, float] = {"": begin.usd} if begin.usd else {}
    before, sum_usd = begin
    for then, usd in marks:
        whole_s = (then - before).total_seconds()
        while (midnight := _midnight_after(before)) < then:
            part = (usd - sum_usd) * (midnight - before).total_seconds() / whole_s
            _add(found, before, part)
            before, sum_usd, whole_s = midnight, sum_usd + part, (then - midnight).total_seconds()
        _add(found, min(before, then), usd - sum_usd)
        before, sum_usd = then, usd
    return [{"day": day, "usd": usd} for day, usd in found.items()]


def _add(found: dict[str, float], at: datetime, usd: float) -> None:
    day = at.date().isoformat()
    found[day] = found.get(day, 0.0) + usd


def _midnight_after(at: datetime) -> datetime:
    return datetime.combine(at.date() + timedelta(days=1), datetime.min.time(), UTC)
