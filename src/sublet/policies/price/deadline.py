"""Jobs that must be done by a certain time: the smallest weight with which they are, and what that costs."""

from __future__ import annotations

from collections.abc import Callable

from sublet.planning.options import Options

__all__ = ["in_time"]

STEP, STEPS = 4.0, 40  # of the value of a job's time: beyond their product money no longer counts
FINER = 6  # halvings of the last step
SAFETY = 0.95  # of the time that is left: speeds are estimates, and GPUs come late


def in_time(options_at: Callable[[float], Options], value_of_time: float, left_h: float) -> tuple[Options, str]:
    """The options at the least value of time, this or more, at which the job ends in time; a warning if none will do.

    `options_at` gives the options at a value of time. Cost: those of a dozen or two values.
    """
    plain = options_at(value_of_time)
    if not plain.any or plain.hours_C[plain.best] <= SAFETY * left_h:
        return plain, ""
    hurried = fastest = plain
    for step in range(1, STEPS + 1):
        hurried = options_at(value_of_time * STEP**step)
        if hurried.hours_C[hurried.best] <= SAFETY * left_h:
            low, high = step - 1.0, float(step)
            for _ in range(FINER):
                middle = (low + high) / 2
                tried = options_at(value_of_time * STEP**middle)
                if tried.hours_C[tried.best] <= SAFETY * left_h:
                    hurried, high = tried, middle
                else:
                    low = middle
            return hurried, ""
        if hurried.hours_C[hurried.best] < fastest.hours_C[fastest.best]:
            fastest = hurried
    fastest_h = float(fastest.hours_C[fastest.best])
    if fastest_h <= left_h:
        return fastest, ""  # with nothing to spare
    usd = float(fastest.cost_C[fastest.best]) - fastest_h * fastest.value_of_time
    return plain, (
        f"its deadline in {left_h:,.2f} h cannot be met: the fastest way, {fastest.menu.shapes[fastest.best]}, takes "
        f"{fastest_h:,.2f} h with its start; a deadline {fastest_h:,.2f} h from now could be, for about USD {usd:,.2f}"
    )
