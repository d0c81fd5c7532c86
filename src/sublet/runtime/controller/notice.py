"""Whether a job saves when a node of it is noticed, or trusts to those that stay."""

from __future__ import annotations

from collections.abc import Callable, Collection

__all__ = ["must_save"]


def must_save(nodes: Collection[str], doomed: Collection[str], is_spot: Callable[[str], bool]) -> bool:
    """`nodes` are those of its workers, `doomed` all that will be taken.

    Workers on other nodes hold the whole state, so nothing need be written while they last: as long as there are two
    such nodes at least, and not all of them are the cloud's to take. Spot nodes are often taken together.
    """
    stay = set(nodes) - set(doomed)
    if stay == set(nodes):
        return False
    return len(stay) <= 1 or all(is_spot(node_id) for node_id in stay)
