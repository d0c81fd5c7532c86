"""Into how many ranges the optimizer's state of a group is cut."""

from __future__ import annotations

KEEP = 2  # workers that hold a range, so that one that is lost takes nothing with it


def ranges_for(world: int, keep: int = KEEP) -> int:
    """Ranges of a group of so many workers, where each range is to be on `keep` of them; 1 = all hold everything.

    >>> [ranges_for(world) for world in (1, 2, 3, 4, 5, 8)]
    [1, 1, 1, 2, 2, 4]
    """
    return max(1, world // keep)
