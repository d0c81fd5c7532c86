"""Jobs that must be done by a certain time: the smallest weight with which they are, and what that costs."""

from __future__ import annotations

from collections.abc import Callable

from sublet.planning.to_go import Options

__all__ = ["in_time"]

DOUBLINGS = 24  # of the value of a job's time: beyond that money no longer counts
SAFETY = 0.95  # of the time that is left: speeds are estimates, and GPUs come late


def in_time(options_at: Callable[[float], Options], value_of_time: float, left_h: float) -> tuple[Options, str]:
    """The options at the least value of time, this or more, at which the job ends in time; a warning if none will do.

    `options_at` gives the options at a value of time. Cost: those of a dozen or two values.
    """
    plain = options_at(value_of_time)
    if not plain.any or plain.hours_C[plain.best] <= SAFETY * left_h:
        return plain, ""
    hurried = plain
    for doubling in range(1, DOUBLINGS + 1):
        hurried = options_at(value_of_time * 2.0**doubling)
        if hurried.hours_C[hurried.best] <= SAFETY * left_h:
            low, high = doubling - 1.0, float(doubling)
            for _ in range(DOUBLINGS // 4):
                middle = (low + high) / 2
                tried = options_at(value_of_time * 2.0**middle)
                if tried.hours_C[tried.best] <= SAFETY * left_h:
                    hurried, high = tried, middle
                else:
                    low = middle
            return hurried, ""
    fastest_h = float(hurried.hours_C[hurried.best])
    return plain, (
        f"its deadline in {left_h:,.2f} h cannot be met: the fastest way, {hurried.menu.shapes[hurried.best]}, takes "
        f"{fastest_h:,.2f} h with its start; a deadline {fastest_h / SAFETY:,.2f} h from now could be"
    )
