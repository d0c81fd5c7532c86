"""How often the same is told: a few times a minute, and then how often it was said besides."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sublet.domain.quantity import counted
from sublet.domain.units import MINUTE_S
from sublet.runtime.controller.history import HistoryRow

__all__ = ["Repeats"]

MOST_ROWS = 20  # of one kind about one subject, in a minute on the wall


@dataclass(slots=True)
class _Minute:
    ends_s: float
    told: int = 0
    first: HistoryRow | None = None  # of those that were not told
    besides: int = 0


class Repeats:
    """Rows of a history, by kind and subject. Times are those of the machine's monotonic clock."""

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, str, str], _Minute] = {}

    def admits(self, row: HistoryRow, now_s: float) -> bool:
        """Whether it is told; if not, it is counted."""
        minute = self._minutes.setdefault((row.kind, row.job_id, row.node_id), _Minute(now_s + MINUTE_S))
        if minute.told < MOST_ROWS:
            minute.told += 1
            return True
        minute.besides, minute.first = minute.besides + 1, minute.first or row
        return False

    def is_due(self, now_s: float) -> bool:
        """Something was counted, and is to be told."""
        return any(minute.first is not None and minute.ends_s <= now_s for minute in self._minutes.values())

    def over(self, now_s: float) -> list[HistoryRow]:
        """What was counted in minutes that are over, a row for each kind and subject. Cost: O(subjects told of)."""
        ended = [key for key, minute in self._minutes.items() if minute.ends_s <= now_s]
        told = []
        for key in ended:
            minute = self._minutes.pop(key)
            if (first := minute.first) is not None:
                text = f"{counted(minute.besides, 'more row')} like this within a minute: {first.text}"
                told.append(replace(first, text=text))
        return told
