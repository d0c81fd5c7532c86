"""Cloud time that was lost while nobody was there, and is found again by what a provider has on record.

No node begins before it was ordered. Where a provider's record says so all the same, either the record is wrong, or our
clock has lost some time since: after a boot a wall clock was believed that was behind (timekeeping.py). Only what was
ordered before that can show it. Then so much more time has passed for everybody, and the clock is put forward.
"""

from __future__ import annotations

from sublet.kernel.ledger import Ledger
from sublet.runtime.clock import Clock

__all__ = ["find_lost_time"]

WHOLE_S = 1.0  # wall: clouds have their times in whole seconds


def find_lost_time(node_id: str, began_s: float | None, *, ledger: Ledger, clock: Clock) -> float:
    """Put the clock forward by what it has lost, as the beginning on record of a node shows; by how much, in cloud s.

    Times that were told with that beginning are to be put forward, too.
    """
    ordered_s = ledger.ordered_s(node_id)
    if began_s is None or ordered_s is None or ordered_s >= clock.doubted_s:
        return 0.0
    lost_s = ordered_s - began_s
    if lost_s <= WHOLE_S * clock.speedup:
        return 0.0
    clock.put_forward(lost_s)
    return lost_s
