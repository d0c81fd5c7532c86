"""Seats of a grid: a place (copy, part) for each GPU, so that GPUs on demand hold one whole copy.

GPUs are seated copy by copy, those on demand first, then in the order of the placement; what is over is spare. So as
many parts as there are GPUs on demand are on demand, and all of them where `steady` is a whole copy. Within a copy each
GPU takes a part that its node has not, where there is one: copies of one part are then on different nodes. Spares are
last, and the workers before them do not move when they go. A controller counts bytes by the same cut of a model into
parts (`borders`) by which workers hold them.

>>> seats((("s", 1), ("d", 2)), Grid(1, 2), steady={"d"})
{'d': ((0, 0), (0, 1)), 's': (None,)}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from sublet.domain.shape import Grid, Placement
from sublet.errors import InvalidValue

Place = tuple[int, int]  # (copy, part)
Seats = dict[str, tuple[Place | None, ...]]  # node -> the place of each of its GPUs; None = spare


def seats(placement: Placement, grid: Grid, steady: Collection[str]) -> Seats:
    """The places of a job's GPUs; `steady` are the nodes on demand. Precondition: as many GPUs as the grid has."""
    ordered = sorted(placement, key=lambda share: share[0] not in steady)
    open_parts: dict[int, None] = {}
    copy = -1
    found: Seats = {}
    for node_id, gpus in ordered:
        places: list[Place | None] = []
        here: set[int] = set()
        for _ in range(gpus):
            if not open_parts and copy + 1 < grid.copies:
                copy, open_parts = copy + 1, dict.fromkeys(range(grid.parts))
            if not open_parts:
                places.append(None)
                continue
            part = next((each for each in open_parts if each not in here), next(iter(open_parts)))
            del open_parts[part]
            here.add(part)
            places.append((copy, part))
        found[node_id] = tuple(places)
    return found


def is_spare(places: Iterable[Place | None]) -> bool:
    """Whether no training worker sits there."""
    return all(place is None for place in places)


def has_all_parts(seated: Seats, grid: Grid) -> bool:
    """Whether the seated workers hold the whole model between them."""
    held = {place[1] for places in seated.values() for place in places if place is not None}
    return len(held) == grid.parts


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
