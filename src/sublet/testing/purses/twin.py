"""What everybody has spent, found out the long way round.

After every event it looks who sits on which node, and adds up the time until the next one GPU by GPU, in fractions and
day by day. It knows no shares, no meters and no sums, and takes nothing from the kernel but who is where and what is
charged now. Where the kernel is woken too late it looks for the microsecond at which jobs had to be told to leave.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from sublet.domain.actions import Action, StopJob
from sublet.domain.events import Event, PurseSet
from sublet.domain.money import microseconds
from sublet.domain.plan import Phase
from sublet.domain.purses import ORG, Holder, Level, Period
from sublet.errors import InvariantBroken
from sublet.kernel.kernel import Kernel

__all__ = ["Twin"]

DAY_US = 86_400_000_000
NEVER = -1


class Sit(NamedTuple):
    """One job on one node."""

    node_id: str
    job_id: str
    payers: tuple[Holder, ...]
    price: int  # of the node, in grains per microsecond
    cap: int
    gpus: int
    size: int  # GPUs of the node
    wind_us: int
    stop_us: int  # when it was told to leave, or had to be
    gone_us: int  # from when on nobody pays for it, whatever leaving takes

    def cost(self, since_us: int, until_us: int) -> Fraction:
        """Grains that somebody else than the organisation pays."""
        if self.stop_us != NEVER:
            until_us = min(until_us, self.stop_us + self.wind_us)
        if self.gone_us != NEVER:
            until_us = min(until_us, self.gone_us)
        return Fraction(self.price * max(0, until_us - since_us) * self.gpus, self.size)

    def ending(self, now_us: int) -> int:
        """Grains that it may cost until it has left, at the most."""
        lasts_us = self.wind_us if self.stop_us == NEVER else max(0, self.stop_us + self.wind_us - now_us)
        if self.gone_us != NEVER:
            lasts_us = min(lasts_us, max(0, self.gone_us - now_us))
        return math.ceil(Fraction(self.cap * lasts_us * self.gpus, self.size))


class Twin:
    """Beside one kernel, whose clock was at 0 when the calendar said `unix_s` (a whole second)."""

    def __init__(self, kernel: Kernel, unix_s: int) -> None:
        self.kernel, self.unix_us = kernel, unix_s * 1_000_000
        self.set: dict[Holder, PurseSet] = {}
        self.spent: dict[Holder, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))  # by day
        self.slack = 0  # grains by which both may differ: each stay on a node is rounded by one
        self.beyond = Fraction(0)  # grains that the organisation has paid since jobs were told too late to leave
        self._since: dict[Holder, int] = {}  # the day and instant from which a purse counts
        self._helpless: dict[Holder, int] = {}  # grains that could not be helped when a purse was made smaller
        self._stops: dict[str, int] = {}  # when a job was told to, or had to be
        self._due: dict[str, int] = {}  # jobs that had to be told to leave before this event
        self._gone: dict[str, int] = {}  # jobs that have spent the budget of their file, and when
        self._sits: list[Sit] = []
        self._now_us = 0
        self._counts = False

    def before(self, event: Event) -> None:
        """Time has passed until then, day by day."""
        until_us = microseconds(event.at_s)
        self._due = {}
        while self._now_us < until_us:
            day = (self.unix_us + self._now_us) // DAY_US
            next_us = min(until_us, (day + 1) * DAY_US - self.unix_us)
            self._tell_in_time(next_us)
            for sit in self._sits:
                cost = sit.cost(self._now_us, next_us)
                self.beyond += sit._replace(stop_us=NEVER).cost(self._now_us, next_us) - cost
                for holder in sit.payers:
                    self.spent[holder][day] += cost
            self._now_us = next_us

    def _tell_in_time(self, until_us: int) -> None:
        """Who had to be told to leave by then, and was not, is paid for as if it had been."""
        due: dict[str, int] = {}
        gone: dict[str, int] = {}
        for holder in self.set.keys() & self.kernel.purses.allowed.keys():
            by_file = holder.level is Level.FILE
            stays = {sit.job_id for sit in self._sits if holder in sit.payers and (by_file or sit.stop_us == NEVER)}
            if stays and self._left(holder, until_us) < 0:
                first_us, last_us = self._now_us, until_us
                while last_us - first_us > 1:
                    middle_us = (first_us + last_us) // 2
                    first_us, last_us = (
                        (middle_us, last_us) if self._left(holder, middle_us) >= 0 else (first_us, middle_us)
                    )
                found = gone if by_file else due
                found |= {job_id: min(first_us, found.get(job_id, first_us)) for job_id in stays}
        late = [sit for sit in self._sits if sit.job_id in due and sit.stop_us == NEVER]
        spent = [sit for sit in self._sits if sit.job_id in gone]
        self.slack += sum(3 * sit.cap for sit in (*late, *spent))  # the kernel's instant is as near, but not the same
        self._sits = [sit._replace(stop_us=due[sit.job_id]) if sit in late else sit for sit in self._sits]
        self._sits = [sit._replace(gone_us=gone.get(sit.job_id, sit.gone_us)) for sit in self._sits]
        self._due, self._gone = due | self._due, gone | self._gone

    def _left(self, holder: Holder, at_us: int) -> Fraction:
        """Grains beyond what leaving may cost, if nothing happens until then, on this day."""
        amount, mine = self.set[holder].amount, [sit for sit in self._sits if holder in sit.payers]
        kept = 0 if holder.level is Level.FILE else sum(sit.ending(at_us) for sit in mine)
        costs = sum((sit.cost(self._now_us, at_us) for sit in mine), Fraction(kept))
        return (0 if amount is None else amount.grains) - self.in_period(holder) - costs

    def after(self, event: Event, orders: Iterable[Action]) -> None:
        """Look who sits where from now on, and whether everybody keeps to what was set."""
        for order in orders:
            if isinstance(order, StopJob):
                self._stops[order.job_id] = self._due.get(order.job_id, self._now_us)
        if isinstance(event, PurseSet):
            self._hear(event)
        stopping = {job_id for job_id, state in self.kernel.jobs.items() if state.phase is Phase.STOPPING}
        self._gone = {job_id: gone_us for job_id, gone_us in self._gone.items() if job_id in stopping}
        before = set(self._sits)
        self._sits = list(self._look()) if self._counts else []
        self._spend_files(stopping)
        self.slack += sum(sit not in before for sit in self._sits)
        self._compare()

    def _spend_files(self, stopping: Iterable[str]) -> None:
        """From now on nobody pays for jobs that have spent what their files say."""
        for job_id in stopping:
            holder, mine = Holder(Level.FILE, job_id), [sit for sit in self._sits if sit.job_id == job_id]
            soon = sum((sit.cost(self._now_us, self._now_us + 2) for sit in mine), Fraction(0))  # two microseconds
            if holder in self.set and job_id not in self._gone and self._left(holder, self._now_us) < soon:
                self._gone[job_id] = self._now_us
                self.slack += sum(3 * sit.cap for sit in mine)
        self._sits = [sit._replace(gone_us=self._gone.get(sit.job_id, NEVER)) for sit in self._sits]

    def _hear(self, event: PurseSet) -> None:
        self._counts = True
        old = self.set.pop(event.holder, None)
        if event.amount is None or event.holder == ORG:
            return
        self.set[event.holder] = event
        if old is None or old.period is not event.period:
            self._since[event.holder] = -1 if event.period is None else self._now_us
            if event.period is not None:  # what was spent of this day before is not of this purse
                self.spent[event.holder] = self._moved(event.holder)
        self._helpless[event.holder] = math.ceil(self.in_period(event.holder)) + self.ending(event.holder)

    def _moved(self, holder: Holder) -> dict[int, Fraction]:
        """All of it to a day long ago."""
        return defaultdict(Fraction, {-1: sum(self.spent[holder].values(), Fraction(0))})

    def _look(self) -> Iterable[Sit]:
        kernel = self.kernel
        for node in kernel.cluster.nodes.values():
            for job_id, gpus in node.jobs.items():
                job, offer = kernel.jobs[job_id].job, node.offer
                names = ((Level.TEAM, job.team), (Level.USER, job.user), (Level.JOB, job.id), (Level.FILE, job.id))
                cap = (offer.price if offer.cap is None else offer.cap).micro_usd_per_h
                yield Sit(
                    node_id=node.id,
                    job_id=job_id,
                    payers=tuple(Holder(level, name) for level, name in names if name),
                    price=min(kernel.ledger.price(offer.id).micro_usd_per_h, cap),
                    cap=cap,
                    gpus=gpus,
                    size=offer.gpus_per_node,
                    wind_us=microseconds(offer.wind_down_s),
                    stop_us=self._stops[job_id] if kernel.jobs[job_id].phase is Phase.STOPPING else NEVER,
                    gone_us=self._gone.get(job_id, NEVER),
                )

    # ------------------------------------------------------------------ the laws

    def in_period(self, holder: Holder) -> Fraction:
        """Grains of the period that it is."""
        period = self.set[holder].period
        if period is None:
            return sum(self.spent[holder].values(), Fraction(0))
        name = _name(period, (self.unix_us + self._now_us) // DAY_US)
        return sum((g for d, g in self.spent[holder].items() if d >= 0 and _name(period, d) == name), Fraction(0))

    def ending(self, holder: Holder) -> int:
        """Grains that it may cost until all have left, at the most."""
        if holder.level is Level.FILE:
            return 0
        return sum(sit.ending(self._now_us) for sit in self._look() if holder in sit.payers)

    def _compare(self) -> None:
        tree = self.kernel.purses
        for holder, event in self.set.items():
            if holder not in tree.allowed:  # of a job that has ended
                continue
            grains, amount = self.in_period(holder), 0 if event.amount is None else event.amount.grains
            allowance = tree.allowed[holder]
            counted = tree.spent(holder, self._now_us) - allowance.opening
            if abs(grains - counted) > self.slack + len(self._sits) + 1:
                _broken("both count the same", f"{holder}: {float(grains)} or {counted} grains")
            left = amount - grains - self.ending(holder)
            if abs(left - tree.left(holder, self._now_us, 1)) > self.slack + len(self._sits) + 1:
                _broken("both have the same left", f"{holder}: {float(left)} or {tree.left(holder, self._now_us, 1)}")
            bound = max(amount, self._helpless[holder])
            if grains > bound + self.slack:
                _broken("never a cent over", f"{holder} spent {float(grains)} of {bound} grains")
            if grains == 0 and left >= 0:
                self._helpless[holder] = 0  # a period has begun since


def _name(period: Period, day: int) -> str:
    then = datetime.fromtimestamp(day * 86_400, UTC)
    forms = {Period.DAY: "%Y-%m-%d", Period.WEEK: "%G-%V", Period.MONTH: "%Y-%m"}
    return then.strftime(forms[period])


def _broken(law: str, found: str) -> None:
    raise InvariantBroken(law, found, [])
