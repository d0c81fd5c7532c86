"""The cut of a model of so many blocks into parts: a controller counts bytes by it, and workers hold them by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sublet.errors import InvalidValue

__all__ = ["borders", "even_ends"]


def even_ends(blocks: int, parts: int) -> tuple[int, ...]:
    """The end of each part, in as even ranges as there are.

    >>> even_ends(8, 3)
    (2, 5, 8)
    """
    if not 1 <= parts <= blocks:
        raise InvalidValue("parts", parts, f"1 to {blocks}: a part has at least one of the {blocks} blocks")
    return tuple((number + 1) * blocks // parts for number in range(parts))


def borders(blocks: int, parts: int, ends: Sequence[int] = ()) -> tuple[int, ...]:
    """The beginning of each part, and the end of the last one; `ends` are chosen ones, () = even.

    >>> borders(8, 3), borders(8, 3, (1, 2, 8))
    ((0, 2, 5, 8), (0, 1, 2, 8))
    """
    found = (0, *(ends or even_ends(blocks, parts)))
    if len(found) != parts + 1 or found[-1] != blocks or any(high <= low for low, high in pairwise(found)):
        raise InvalidValue("ends", tuple(ends), f"{parts} numbers of blocks that rise to {blocks}")
    return found
