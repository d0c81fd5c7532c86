"""The budget of a job's own file: what the kernel is told of it, and what is kept back of it to stop in time."""

from __future__ import annotations

from collections.abc import Callable

from sublet.domain.budget import Holder, Level
from sublet.domain.events import PurseSet
from sublet.domain.money import Money, microseconds
from sublet.runtime.controller.jobs.feasibility import STOP_S
from sublet.runtime.controller.memory import Context, JobRecord
from sublet.runtime.jobs.spec import JobSpec

__all__ = ["OwnBudgets"]

LAST_S = 2.0  # wall, to be ended without a save: a second for that, and what may lie between two looks


class OwnBudgets:
    """Of all jobs; `carry_s`: for how long the end of its workers may be held while what they saved is carried."""

    def __init__(self, context: Context, carry_s: Callable[[JobSpec], float]) -> None:
        self._inbox, self._bill, self._clock = context.inbox, context.bill, context.host.clock
        self._carry_s = carry_s

    def tell(self, record: JobRecord) -> None:
        """The kernel, of a job that has one: when it comes, is given more, or goes on."""
        if record.spec.purse_usd is None:
            return
        now_s, own = self._inbox.now_s(), Holder(Level.FILE, record.id)
        self._bill.settle_job(record.id, now_s)
        left = Money.from_usd(record.spec.purse_usd) - self._bill.jobs[record.id].total
        purses = self._inbox.kernel.budgets
        free = 0 if own not in purses.allowed else purses.allowed[own].opening  # what it was never charged
        amount = Money(max(0, left.grains + purses.spent(own, microseconds(now_s)) - free))
        self._inbox.tell(PurseSet(now_s, own, amount, None, self._clock.wall.unix()))

    def lacks(self, record: JobRecord) -> bool:
        """The kernel was not told of it: by a controller of an earlier version."""
        kernel, own = self._inbox.kernel, Holder(Level.FILE, record.id)
        lives = record.id in kernel.jobs and not record.outcome
        return lives and record.spec.purse_usd is not None and own not in kernel.budgets.allowed

    def is_spent(self, record: JobRecord) -> bool:
        """The kernel has ended the job at its last cent: it was not held in time."""
        own = self._inbox.kernel.budgets.allowed.get(Holder(Level.FILE, record.id))
        return own is not None and own.spent

    def stop_usd(self, record: JobRecord) -> float:
        """To save, to leave, and to carry what was saved, at what the job burns now."""
        return self._usd(record, STOP_S + record.write_s)

    def end_usd(self, record: JobRecord) -> float:
        """To be ended, where it did not get away in time."""
        return self._usd(record, LAST_S)

    def _usd(self, record: JobRecord, wall_s: float) -> float:
        usd_per_s = self._bill.burn_usd_per_h(record.id) * self._clock.speedup / 3600.0
        return usd_per_s * (wall_s + self._carry_s(record.spec))
