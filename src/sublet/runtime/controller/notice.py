"""Whether a job saves when a node of it is noticed, trusts to those that stay, or cannot save in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

__all__ = ["can_save", "must_save"]


def must_save(nodes: Collection[str], doomed: Collection[str], is_spot: Callable[[str], bool]) -> bool:
    """`nodes` are those of its workers, `doomed` all that will be taken.

    Workers on other nodes hold the whole state, so nothing need be written while they last: as long as there are two
    such nodes at least, and not all of them are the cloud's to take. Spot nodes are often taken together.
    """
    stay = set(nodes) - set(doomed)
    if stay == set(nodes):
        return False
    return len(stay) <= 1 or all(is_spot(node_id) for node_id in stay)


def can_save(nodes: Collection[str], left_s: Mapping[str, float], write_s: float) -> bool:
    """`left_s` of each node that will be taken, `write_s` of the last checkpoint; 0 = there was none yet.

    Whoever stays writes as long as it takes. Where all go, one that takes longer than the last of them stays would be
    begun in vain: training goes on from the one before it.
    """
    return any(node_id not in left_s for node_id in nodes) or write_s <= max(left_s[node_id] for node_id in nodes)
