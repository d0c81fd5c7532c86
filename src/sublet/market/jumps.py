"""A price that jumps: a slip for one tick, a price once it has held.

`market.hygiene` sets a price aside that is five times away from the one before. Some such moves are real, and nothing
but time tells them from a slip: one that is asked again and again for ten minutes is what a node costs now.
"""

from __future__ import annotations

from dataclasses import dataclass

from sublet.market.hygiene import AGREEMENT, FAR_OUT

__all__ = ["HELD_S", "Jump", "after_reading"]

HELD_S = 600.0  # ten readings of a price that is asked for every minute; nothing is rented on it meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A price far from the one before that is watched, and since when it is asked."""

    usd_per_h: float
    since_s: float


def after_reading(before_usd_per_h: float, usd_per_h: float, watched: Jump | None, now_s: float) -> Jump | None:
    """The jump that is watched after this reading; None = it is believed: no jump, or one that has held.

    A reading that does not agree with the watched one starts the time anew, so a price that jumps about is never
    believed.

    >>> jump = after_reading(0.3, 3.0, None, 0.0)
    >>> after_reading(0.3, 3.1, jump, 599.0) == jump, after_reading(0.3, 3.1, jump, 600.0)
    (True, None)
    """
    if before_usd_per_h / FAR_OUT < usd_per_h < before_usd_per_h * FAR_OUT:
        return None
    agrees = watched is not None and watched.usd_per_h / AGREEMENT < usd_per_h < watched.usd_per_h * AGREEMENT
    if watched is None or not agrees:
        return Jump(usd_per_h=usd_per_h, since_s=now_s)
    return None if now_s - watched.since_s >= HELD_S else watched
