"""The spending of all, computed the long way round.

After every event it looks at the jobs of each node, and adds up the time until the next one GPU by GPU, in fractions
and day by day. It knows no shares, no meters and no sums. From the kernel it takes only placements, present prices, and
the wake-up that it asked for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from sublet.domain.actions import Action, SetTimer, StopJob
from sublet.domain.budget import ORG, Holder, Level, Period
from sublet.domain.events import Event, PurseSet
from sublet.domain.money import microseconds
from sublet.domain.plan import Phase
from sublet.domain.timers import CheckPurse
from sublet.errors import InvariantBroken
from sublet.kernel.kernel import Kernel

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
    stop_us: int  # when it was told to leave

    def cost(self, since_us: int, until_us: int) -> Fraction:
        """Grains that others than the organisation pay."""
        if self.stop_us != NEVER:
            until_us = min(until_us, self.stop_us + self.wind_us)
        return Fraction(self.price * max(0, until_us - since_us) * self.gpus, self.size)

    def ending(self, now_us: int) -> int:
        """Grains that it may cost until it has left, at the most."""
        lasts_us = self.wind_us if self.stop_us == NEVER else max(0, self.stop_us + self.wind_us - now_us)
        return math.ceil(Fraction(self.cap * lasts_us * self.gpus, self.size))


class _Said(NamedTuple):
    """How it was when a budget was set, or its period began."""

    period: str
    spent: Fraction
    free: Fraction  # of that, what it was not charged
    most: Fraction | None = None  # what may be spent at the most, since it is spent and all leave


class Twin:
    """Beside one kernel, whose clock was at 0 when the calendar said `unix_s` (a whole second)."""

    def __init__(self, kernel: Kernel, unix_s: int) -> None:
        self.kernel, self.unix_us = kernel, unix_s * 1_000_000
        self.set: dict[Holder, PurseSet] = {}
        self.spent: dict[Holder, dict[int, Fraction]] = defaultdict(lambda: defaultdict(Fraction))  # by day
        self.slack = 0  # grains by which both may differ: each stay on a node is rounded by one
        self.over = Fraction(0)  # grains beyond what was set, at the most
        self.late_us = 0  # by which this look comes after the instant that the kernel had asked for
        self._asked_us: float = math.inf
        self._said: dict[Holder, _Said] = {}
        self._stops: dict[str, int] = {}  # when a job was told to
        self._sits: list[Sit] = []
        self._now_us = 0
        self._counts = False

    def before(self, event: Event) -> None:
        """Time has passed until then, day by day."""
        until_us = microseconds(event.at_s)
        self.late_us = max(0, until_us - int(self._asked_us)) if self._asked_us < until_us else 0
        while self._now_us < until_us:
            day = (self.unix_us + self._now_us) // DAY_US
            next_us = min(until_us, (day + 1) * DAY_US - self.unix_us)
            for sit in self._sits:
                cost = sit.cost(self._now_us, next_us)
                for holder in sit.payers:
                    self.spent[holder][day] += cost
            self._now_us = next_us

    def after(self, event: Event, orders: Iterable[Action]) -> None:
        """Look at the placements from now on, and whether the limits are kept."""
        if self._asked_us <= self._now_us:
            self._asked_us = math.inf
        for order in orders:
            if isinstance(order, StopJob):
                self._stops[order.job_id] = self._now_us
            elif isinstance(order, SetTimer) and isinstance(order.timer, CheckPurse):
                self._asked_us = microseconds(order.at_s)
        if isinstance(event, PurseSet):
            self._hear(event)
        before, self._sits = self._sits, list(self._look()) if self._counts else []
        self.slack += sum(sit not in before for sit in self._sits)
        for holder in self.set.keys() & self.kernel.budgets.allowed.keys():  # not of a job that has ended
            self._keeps(holder, before)

    def _hear(self, event: PurseSet) -> None:
        self._counts = True
        old, said = self.set.get(event.holder), self._said.pop(event.holder, None)
        free = Fraction(0) if said is None else self.in_period(event.holder) - self._charged(event.holder, said)
        self.set.pop(event.holder, None)
        if event.amount is None or event.holder == ORG:
            return
        self.set[event.holder] = event
        if old is None or old.period is not event.period:
            free = Fraction(0)
            if event.period is not None:  # what was spent of this day before is not of this budget
                self.spent[event.holder] = self._moved(event.holder)
        self._said[event.holder] = _Said(self._day_name(event.holder), self.in_period(event.holder), free)

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
                )

    # ------------------------------------------------------------------ the laws

    def in_period(self, holder: Holder) -> Fraction:
        """Grains of the period that it is."""
        period = self.set[holder].period
        if period is None:
            return sum(self.spent[holder].values(), Fraction(0))
        name = _name(period, (self.unix_us + self._now_us) // DAY_US)
        return sum((g for d, g in self.spent[holder].items() if d >= 0 and _name(period, d) == name), Fraction(0))

    def _day_name(self, holder: Holder) -> str:
        period = self.set[holder].period
        return "" if period is None else _name(period, (self.unix_us + self._now_us) // DAY_US)

    def _charged(self, holder: Holder, said: _Said) -> Fraction:
        """Grains of this period; of a job, no more than there were, or had been spent as that was said."""
        grains = self.in_period(holder)
        exact = holder.level in (Level.JOB, Level.FILE)
        return min(grains, max(said.free + self._amount(holder), said.spent)) - said.free if exact else grains

    def _amount(self, holder: Holder) -> int:
        amount = self.set[holder].amount
        return 0 if amount is None else amount.grains

    def _keeps(self, holder: Holder, before: Iterable[Sit]) -> None:
        said = self._said[holder]
        if said.period != self._day_name(holder):
            said = self._said[holder] = _Said(self._day_name(holder), Fraction(0), Fraction(0))
        tree, near = self.kernel.budgets, self.slack + len(self._sits) + 1
        charged, amount = self._charged(holder, said), self._amount(holder)
        counted = tree.spent(holder, self._now_us) - tree.allowed[holder].opening
        if abs(charged - counted) > near:
            _broken("both count the same", f"{holder}: {float(charged)} or {counted} grains")
        if holder.level in (Level.JOB, Level.FILE) and counted > max(Fraction(amount), said.spent - said.free):
            _broken("a job is never charged a cent over", f"{holder} is charged {counted} of {amount} grains")
        self._keeps_within_an_interval(holder, said, [sit for sit in before if holder in sit.payers])

    def _keeps_within_an_interval(self, holder: Holder, said: _Said, before: Iterable[Sit]) -> None:
        """Over <= burn x interval: from the instant that was asked for to this look, and until all have left."""
        mine = [sit for sit in self._sits if holder in sit.payers]
        grains, bound = self.in_period(holder), max(said.free + self._amount(holder), said.spent)
        late = sum((sit.cost(self._now_us - self.late_us, self._now_us) for sit in before), Fraction(0))
        soon = 3 * sum((sit.cost(0, 1) for sit in (*before, *mine)), Fraction(0))  # it asks by the microsecond
        most = bound + late + soon if said.most is None else said.most
        if grains > most + self.slack:
            _broken("over by no more than an interval burns", f"{holder} spent {float(grains)} of {float(most)} grains")
        leaving = sum(sit.ending(self._now_us) for sit in mine)
        kept = leaving if holder.level is Level.JOB else 0
        spent = grains + kept + soon + self.slack >= bound
        if said.most is None and spent and all(sit.stop_us != NEVER for sit in mine):
            self._said[holder] = said._replace(most=grains + leaving)
            self.over += max(Fraction(0), grains - bound) + leaving


def _name(period: Period, day: int) -> str:
    then = datetime.fromtimestamp(day * 86_400, UTC)
    forms = {Period.DAY: "%Y-%m-%d", Period.WEEK: "%G-%V", Period.MONTH: "%Y-%m"}
    return then.strftime(forms[period])


def _broken(law: str, found: str) -> None:
    raise InvariantBroken(law, found, [])
