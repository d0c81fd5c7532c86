"""Money that is paid, and for what: the bill by purpose, the clock that it is booked by, what is paid beside nodes."""

from __future__ import annotations

from sublet.runtime.controller.money.bill import (
    PURPOSES,
    Account,
    Bill,
    Purpose,
    is_paid,
    left_behind,
    nothing_wanted,
    said_at_the_end,
)
from sublet.runtime.controller.money.timekeeping import (
    MARK_EVERY_S,
    clock_from,
    find_lost_time,
    last_sign_s,
    mark,
    mark_text,
    passed_s,
)

__all__ = [
    "MARK_EVERY_S",
    "PURPOSES",
    "Account",
    "Bill",
    "Purpose",
    "clock_from",
    "find_lost_time",
    "is_paid",
    "last_sign_s",
    "left_behind",
    "mark",
    "mark_text",
    "nothing_wanted",
    "passed_s",
    "said_at_the_end",
]
