"""The budget of a job's file, as the kernel keeps it: what the bill leaves of it, beside what is counted there."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.events import PurseSet
from sublet.domain.money import Money, microseconds
from sublet.domain.purses import Holder, Level
from sublet.runtime.clock import Clock
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.records import JobRecord

__all__ = ["Funding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Funding:
    """Of all jobs."""

    inbox: Inbox
    bill: Bill
    clock: Clock

    def tell(self, record: JobRecord) -> None:
        """The kernel, of a job that has one: when it comes, is given more, or goes on."""
        if record.spec.purse_usd is None:
            return
        now_s, own = self.inbox.now_s(), Holder(Level.FILE, record.id)
        self.bill.settle_job(record.id, now_s)
        left = Money.from_usd(record.spec.purse_usd) - self.bill.jobs[record.id].total
        purses = self.inbox.kernel.purses
        free = 0 if own not in purses.allowed else purses.allowed[own].opening  # what it was never charged
        amount = Money(max(0, left.grains + purses.spent(own, microseconds(now_s)) - free))
        self.inbox.tell(PurseSet(now_s, own, amount, None, self.clock.wall.unix()))

    def lacks(self, record: JobRecord) -> bool:
        """The kernel was not told of it: by a controller of an earlier version."""
        kernel, own = self.inbox.kernel, Holder(Level.FILE, record.id)
        lives = record.id in kernel.jobs and not record.outcome
        return lives and record.spec.purse_usd is not None and own not in kernel.purses.allowed

    def is_spent(self, record: JobRecord) -> bool:
        """The kernel has ended the job at its last cent: nobody was there in time."""
        own = self.inbox.kernel.purses.allowed.get(Holder(Level.FILE, record.id))
        return own is not None and own.spent
