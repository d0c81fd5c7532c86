"""How long a pipeline takes: each pass begins when its part is free and what it needs has come."""

from __future__ import annotations

from functools import cache

from sublet.train.grid.pipeline import schedule


def pipeline_s(forward_s, backward_s, atoms):
    """Of one copy; seconds of each part for one atom. Parts that wait for one another are an endless recursion."""
    parts = len(forward_s)
    orders = [schedule(part, parts, atoms) for part in range(parts)]

    @cache
    def ended_s(part, number):
        if number < 0:
            return 0.0
        each = orders[part][number]
        giver = part - 1 if each.forward else part + 1
        came_s = ended_s(giver, orders[giver].index(each)) if 0 <= giver < parts else 0.0
        takes_s = (forward_s if each.forward else backward_s)[part]
        return max(ended_s(part, number - 1), came_s) + takes_s

    return max(ended_s(part, len(orders[part]) - 1) for part in range(parts))
