"""Parts are copied before announced losses: what the grid of afterwards needs is there by then.

Two things are looked at, in this order:

Only members of the mesh can be filled while it trains: a spare that keeps nothing yet is not.

- the seats of the grid that the loss leads to: a worker that will sit there keeps what it will need and does not hold;
- a part that would be lost: one of those that stay keeps it, a worker in no place before others, then the one that
  keeps least.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sublet.domain.seats import Place
from sublet.domain.shape import Grid
from sublet.planning.seating import overlaps, seats

__all__ = ["kept_ahead"]


def kept_ahead(
    was: Mapping[str, Place | None],
    now: Grid,
    to: Grid | None,
    params: Sequence[int],
    nodes: Mapping[str, str],
    *,
    kept: Mapping[str, Collection[int]],
    doomed: Collection[str],
    steady: Collection[str] = (),
) -> dict[str, tuple[int, ...]]:
    """Parts of `now` that each is to keep besides what it holds; `doomed` are nodes.

    `to` is the grid to come, None if it is not known: then no part is to be lost, and nothing else. Workers are as in
    `seats`.
    """
    held = {name: {*kept.get(name, ()), *([place[1]] if place else [])} for name, place in was.items()}
    leaving = [name for name in was if nodes[name] in doomed]
    staying = sorted(name for name in was if name not in leaving and held[name])
    found: dict[str, set[int]] = {name: set() for name in staying}
    if to is not None and len(was) - len(leaving) >= to.gpus:
        seated = seats(was, now, to, params, nodes, kept=kept, leaving=leaving, steady=steady)
        common = overlaps(params, now.parts, to.parts)
        for name, (_, part) in seated.members.items():
            if name in found:
                found[name] = {old for old in range(now.parts) if common[old, part] > 0} - held[name]
    for part in range(now.parts):
        if staying and not any(part in held[name] | found[name] for name in staying):
            name = min(staying, key=lambda each: (was[each] is not None, len(found[each]) + len(held[each]), each))
            found[name].add(part)
    return {name: tuple(sorted(parts)) for name, parts in found.items() if parts}
