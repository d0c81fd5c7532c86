"""What everybody has spent, found out the long way round.

After every event it looks who sits on which node, and adds up the time until the next one GPU by GPU, in fractions and
day by day. It knows no shares, no meters and no sums, and takes nothing from the kernel but who is where and what is
charged now.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

from sublet.domain.actions import Action, StopJob
from sublet.domain.events import Event, PurseSet
from sublet.domain.money import microseconds
from sublet.domain.plan import Phase
from sublet.domain.purses import ORG, Holder, Level, Period
from sublet.errors import InvariantBroken
from sublet.kernel.kernel import Kernel

__all__ = ["Twin"]

DAY_US = 86_400_000_000


class Twin:
    """Beside one kernel, whose clock was at 0 when the calendar said `unix_s` (a whole second)."""

    def __init__(self, kernel: Kernel, unix_s: int) -> None:
        self.kernel, self.unix_us = kernel, unix_s * 1_000_000
        self.set: dict[Holder, PurseSet] = {}
        self.spent: dict[Holder, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))  # by day
        self.ends = 0  # of stays on a node: each may be rounded by a grain
        self._since: dict[Holder, int] = {}  # the day and instant from which a purse counts
        self._helpless: dict[Holder, int] = {}  # grains that could not be helped when a purse was made smaller
        self._stops: dict[str, int] = {}  # when a job was told to
        self._sits: list[tuple[str, tuple[Holder, ...], int, int, int, int, int]] = []
        self._now_us = 0
        self._counts = False

    def before(self, event: Event) -> None:
        """Time has passed until then."""
        until_us = microseconds(event.at_s)
        for _, payers, price, gpus, size, wind_us, stop_us in self._sits:
            end_us = min(until_us, stop_us + wind_us) if stop_us >= 0 else until_us
            since_us = self._now_us
            while since_us < end_us:
                day = (self.unix_us + since_us) // DAY_US
                next_us = min(end_us, (day + 1) * DAY_US - self.unix_us)
                for holder in payers:
                    self.spent[holder][day] += Fraction(price * (next_us - since_us) * gpus, size)
                since_us = next_us
        self._now_us = max(self._now_us, until_us)

    def after(self, event: Event, orders: Iterable[Action]) -> None:
        """Look who sits where from now on, and whether everybody keeps to what was set."""
        for order in orders:
            if isinstance(order, StopJob):
                self._stops[order.job_id] = self._now_us
        if isinstance(event, PurseSet):
            self._hear(event)
        before = {sit[0]: sit for sit in self._sits}
        self._sits = list(self._look()) if self._counts else []
        self.ends += sum(before.get(sit[0]) != sit for sit in self._sits)
        self._compare()

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

    def _look(self) -> Iterable[tuple[str, tuple[Holder, ...], int, int, int, int, int]]:
        kernel = self.kernel
        for node in kernel.cluster.nodes.values():
            for job_id, gpus in node.jobs.items():
                job, offer = kernel.jobs[job_id].job, node.offer
                names = ((Level.TEAM, job.team), (Level.USER, job.user), (Level.JOB, job.id))
                payers = tuple(Holder(level, name) for level, name in names if name)
                cap = offer.price if offer.cap is None else offer.cap
                price = min(kernel.ledger.price(offer.id), cap).micro_usd_per_h
                stops = kernel.jobs[job_id].phase is Phase.STOPPING
                stop_us = self._stops[job_id] if stops else -1
                wind_us = microseconds(offer.wind_down_s)
                yield f"{node.id} {job_id}", payers, price, gpus, offer.gpus_per_node, wind_us, stop_us

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
        grains = 0
        for node in self.kernel.cluster.nodes.values():
            for job_id, gpus in node.jobs.items():
                job, offer = self.kernel.jobs[job_id].job, node.offer
                if holder.name == {Level.TEAM: job.team, Level.USER: job.user, Level.JOB: job.id}[holder.level]:
                    cap = offer.price if offer.cap is None else offer.cap
                    lasts_us = microseconds(offer.wind_down_s)
                    if self.kernel.jobs[job_id].phase is Phase.STOPPING:
                        lasts_us = max(0, self._stops[job_id] + lasts_us - self._now_us)
                    grains += math.ceil(Fraction(cap.micro_usd_per_h * lasts_us * gpus, offer.gpus_per_node))
        return grains

    def _compare(self) -> None:
        tree = self.kernel.purses
        for holder, event in self.set.items():
            if holder not in tree.allowed:  # of a job that has ended
                continue
            grains, amount = self.in_period(holder), 0 if event.amount is None else event.amount.grains
            allowance = tree.allowed[holder]
            counted = tree.spent(holder, self._now_us) - allowance.opening
            if abs(grains - counted) > self.ends + len(self._sits) + 1:
                _broken("both count the same", f"{holder}: {float(grains)} or {counted} grains")
            left = amount - grains - self.ending(holder)
            if abs(left - tree.left(holder, self._now_us, 1)) > self.ends + len(self._sits) + 1:
                _broken("both have the same left", f"{holder}: {float(left)} or {tree.left(holder, self._now_us, 1)}")
            bound = max(amount, self._helpless[holder])
            if grains > bound + self.ends:
                _broken("never a cent over", f"{holder} spent {float(grains)} of {bound} grains")
            if grains == 0 and left >= 0:
                self._helpless[holder] = 0  # a period has begun since


def _name(period: Period, day: int) -> str:
    then = datetime.fromtimestamp(day * 86_400, UTC)
    forms = {Period.DAY: "%Y-%m-%d", Period.WEEK: "%G-%V", Period.MONTH: "%Y-%m"}
    return then.strftime(forms[period])


def _broken(law: str, found: str) -> None:
    raise InvariantBroken(law, found, [])
