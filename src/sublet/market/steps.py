"""A step function: whole numbers that each hold until the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sublet.errors import InvalidValue
from sublet.solve.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Steps:
    """`value[i]` holds from `t_s[i]` up to, and not including, `t_s[i + 1]`; the last one holds for ever.

    >>> Steps(t_s=np.array([0.0, 60.0]), value=np.array([18, 19])).at(59.9, before=0)
    18
    """

    t_s: Floats
    value: Ints

    def __post_init__(self) -> None:
        t_s, value = np.array(self.t_s, dtype=np.float64), np.array(self.value, dtype=np.int64)
        if t_s.ndim != 1 or t_s.shape != value.shape or not t_s.size:
            raise InvalidValue("steps", (t_s.shape, value.shape), "two rows of the same length, at least 1")
        if not np.isfinite(t_s).all() or (np.diff(t_s) <= 0).any():
            raise InvalidValue("t_s", t_s, "finite and increasing")
        for name, array in (("t_s", t_s), ("value", value)):
            array.setflags(write=False)  # our own copy: it cannot change under us
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        return f"Steps(rows={len(self.t_s)})"

    def at(self, t_s: float, *, before: int) -> int:
        """The value in force at `t_s`; `before` where nothing has been stated yet. O(log n)."""
        index = int(np.searchsorted(self.t_s, t_s, side="right")) - 1
        return int(self.value[index]) if index >= 0 else before

    def many(self, t_s: Floats, *, before: int) -> Ints:
        """`at` for many instants in any order."""
        index = np.searchsorted(self.t_s, t_s, side="right") - 1
        return np.where(index >= 0, self.value[np.maximum(index, 0)], before)

    def between(self, start_s: float, end_s: float) -> tuple[Floats, Ints]:
        """The steps strictly after `start_s` and strictly before `end_s`."""
        first = int(np.searchsorted(self.t_s, start_s, side="right"))
        last = max(first, int(np.searchsorted(self.t_s, end_s, side="left")))
        return self.t_s[first:last], self.value[first:last]

    def compact(self) -> Steps:
        """The same function without the rows that repeat the value before them."""
        kept = np.concatenate(([True], np.diff(self.value) != 0))
        return self if kept.all() else Steps(t_s=self.t_s[kept], value=self.value[kept])
