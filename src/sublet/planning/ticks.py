"""When to look again: policies that decide every so often do so at multiples of their period."""

from __future__ import annotations

import math

__all__ = ["next_tick_s"]

TICK_SLACK = 1e-9  # relative: a time that is a multiple up to rounding is one


def next_tick_s(now_s: float, every_s: float) -> float:
    """The first multiple of `every_s` after now.

    >>> next_tick_s(0.0, 600.0), next_tick_s(601.0, 600.0)
    (600.0, 1200.0)
    """
    return (math.floor(now_s / every_s * (1.0 + TICK_SLACK) + TICK_SLACK) + 1) * every_s
