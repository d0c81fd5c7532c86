"""A tree of purses that is looked at too late: timers ring after their instant, or nobody was there for a while.

The kernel asks to be woken when the first purse has nothing left but what leaving may cost. If it is not, jobs stay on
that nobody pays for. So before anything else is heard it is found out when each purse had come to that point, and its
jobs count as told to leave then: they are paid for until they had to be gone, and no longer. Whatever they cost beyond
that is the organisation's, like that of a job which stays on when it was told in time.
"""

from __future__ import annotations

from sublet.domain.purses import ORG, Holder, Level
from sublet.kernel.allowances import PurseTree
from sublet.kernel.shares import Share

__all__ = ["Late", "look_back"]

ROUNDING_US = 1  # shares are rounded to whole grains, and the least of them costs many in a microsecond
Late = tuple[Share, int | None]  # what has another end now, and the one that it had


def look_back(tree: PurseTree, since_us: int, now_us: int) -> list[Late]:
    """Settle the ends of those who had to be told to leave, or to be gone, between these two instants.

    Nothing has happened in between, and at the first of them no purse was below what leaving may cost.
    """
    late: list[Late] = []
    told: dict[Holder, int] = {}  # all are looked at before the first end is settled
    for holder in tree.allowed:
        if holder != ORG and tree.shares.jobs(holder) and tree.left(holder, now_us, 1) < 0:
            told[holder] = _last_paid_us(tree, holder, since_us, now_us) - ROUNDING_US
    for holder, at_us in sorted(told.items(), key=lambda each: each[1]):
        gone = holder.level is Level.FILE  # of it nothing is kept back to leave
        for job_id, share in tree.shares.paid_by(holder):
            if gone and (share.until_us is None or share.until_us > at_us):
                late.append((share, share.until_us))
                share.until_us = at_us
                tree.shares.gone_us.setdefault(job_id, at_us)
            elif not gone and share.until_us is None:
                late.append((share, None))
                share.until_us = at_us + share.wind_down_us
                tree.shares.due_us.setdefault(job_id, at_us)
    return late


def _last_paid_us(tree: PurseTree, holder: Holder, since_us: int, now_us: int) -> int:
    """The last instant at which all that it pays for could have left within it. O(shares log time).

    What is left falls faster and faster: who stays is paid for, and who leaves costs less than was kept back for it
    until it is gone. So there is one such instant.
    """
    first_us, last_us = since_us, now_us
    while last_us - first_us > 1:
        middle_us = (first_us + last_us) // 2
        if tree.left(holder, middle_us, 1) >= 0:
            first_us = middle_us
        else:
            last_us = middle_us
    return first_us
