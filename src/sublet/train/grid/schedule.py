"""One forward, one backward: in which order a part works on its atoms.

The first part runs as many atoms ahead as there are parts behind it, then gives one back for each that it takes. So a
part holds the activations of at most `parts - part` atoms, and the pipeline is as full as it can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sublet.domain.quantity import whole

__all__ = ["Work", "pipeline_s", "schedule"]


@dataclass(frozen=True, slots=True)
class Work:
    """The pass of one atom through one part."""

    atom: int
    forward: bool


@lru_cache(maxsize=64)  # asked for in every step, with the same numbers
def schedule(part: int, parts: int, atoms: int) -> tuple[Work, ...]:
    """All passes of a part in a step, in order.

    >>> "".join(f"{'F' if work.forward else 'B'}{work.atom} " for work in schedule(0, 2, 3))
    'F0 F1 B0 F2 B1 B2 '
    """
    whole("parts", parts, 1)
    whole("part", part)
    ahead = min(atoms, parts - 1 - part)
    order = [Work(atom, forward=True) for atom in range(ahead)]
    for atom in range(ahead, atoms):
        order += (Work(atom, forward=True), Work(atom - ahead, forward=False))
    order += (Work(atom, forward=False) for atom in range(atoms - ahead, atoms))
    return tuple(order)


def pipeline_s(forward_s: npt.ArrayLike, backward_s: npt.ArrayLike, atoms: int, border_s: float = 0.0) -> float:
    """How long a step of one copy takes: seconds of each part for one atom, and of a border between two.

    Each pass begins when its part is free and what it needs has come. O(parts x atoms).
    """
    forward, backward = np.asarray(forward_s, dtype=float), np.asarray(backward_s, dtype=float)
    parts = len(forward)
    ends = {True: np.full((parts, atoms), np.nan), False: np.full((parts, atoms), np.nan)}
    free, orders = np.zeros(parts), [list(schedule(part, parts, atoms)) for part in range(parts)]
    left = sum(map(len, orders))
    while left:
        before = left
        for part in range(parts):
            while orders[part]:
                work = orders[part][0]
                came = _came_s(ends, part, work, parts, border_s)
                if np.isnan(came):
                    break
                takes = forward[part] if work.forward else backward[part]
                free[part] = max(free[part], came) + takes
                ends[work.forward][part, work.atom] = free[part]
                orders[part].pop(0)
                left -= 1
        if left == before:
            raise AssertionError("the parts of a pipeline wait for one another")
    return float(free.max())


def _came_s(ends: dict[bool, npt.NDArray[np.float64]], part: int, work: Work, parts: int, border_s: float) -> float:
    """When what a pass needs is there; not a number while it is not."""
    if work.forward:
        return 0.0 if part == 0 else float(ends[True][part - 1, work.atom]) + border_s
    if part == parts - 1:
        return float(ends[True][part, work.atom])
    return float(ends[False][part + 1, work.atom]) + border_s
