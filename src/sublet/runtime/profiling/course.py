"""The next stop of a profiling run: through worker counts and batches, within its time.

The first stop tells which batches the script can have. Each of the others has an equal part of the time that is left,
and goes on early when it was measured often enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sublet.domain.plan import Plan, Snapshot, arrival
from sublet.domain.quantity import whole
from sublet.domain.shape import Shape
from sublet.errors import InvalidValue
from sublet.planning.draft import Draft
from sublet.runtime.profiles.learned import REPORTS, Form, Profiling

FEW = 4  # batches, where none are named
PATIENCE = 2.0  # parts of the time for a stop of which nothing is heard: its steps may be slow


@dataclass(frozen=True, slots=True)
class Stop:
    """So many workers, and this batch; None = the script's own."""

    width: int
    batch: int | None = None

    def __str__(self) -> str:
        of = "its own batch" if self.batch is None else f"batch {self.batch}"
        return f"{self.width} {'worker' if self.width == 1 else 'workers'}, {of}"


@dataclass(slots=True, kw_only=True)
class Course:
    """`at` is where it is; None = it is through."""

    widths: Sequence[int]
    batches: Sequence[int] = ()  # () = a few of those that the script can have
    end_s: float = math.inf  # when all must be over, by the clock of the caller
    at: Stop | None = None
    been: list[Stop] = field(default_factory=list)  # `at` included
    notes: list[str] = field(default_factory=list)
    _next: list[Stop] = field(default_factory=list)
    _knows: bool = False  # which batches the script can have
    _since_s: float = 0.0
    _part_s: float = 0.0

    def __post_init__(self) -> None:
        for name, values in (("--widths", self.widths), ("--batches", self.batches)):
            for value in values:
                whole(name, value, 1)
            if len(set(values)) < len(values):
                raise InvalidValue(name, ",".join(map(str, values)), "different numbers")
        if not self.widths:
            raise InvalidValue("--widths", "", "at least one number of workers, such as 1,2,4")
        self.widths = sorted(self.widths)
        fit = [batch for batch in self.batches if batch >= self.widths[0]]
        self.at = Stop(self.widths[0], min(fit) if fit else None)

    def look(self, heard: Profiling, width: int, now_s: float) -> None:
        """Go on if it is time: `heard` is all that the job has told of itself, `width` what it trains on now.

        The time of a stop counts from when it has its workers: starting them is not what is measured.
        """
        if self.at is not None and now_s >= self.end_s:
            missed = [stop for stop in (self.at, *self._next) if form_of(stop, heard.forms) is None]
            self.notes += [f"{stop}: no time was left for it" for stop in missed]
            self.at, self._next = None, []
        if self.at is None or not heard.batch:
            return
        if not self._knows:
            self._learn(heard, now_s)
        if width != self.at.width:
            self._begin(now_s)
            return
        form = form_of(self.at, heard.forms)
        reports = len(heard.forms[form]) if form else 0
        in_time = now_s < self._since_s + self._part_s * (1.0 if reports else PATIENCE)
        if reports < REPORTS and in_time:
            return
        if not reports:
            self.notes.append(
                f"{self.at}: not a whole step was seen in {now_s - self._since_s:.0f} s; give more --seconds"
            )
        self._go_on(now_s)

    def _learn(self, heard: Profiling, now_s: float) -> None:
        """The script trains: now it is known which batches it can have."""
        self._knows = True
        own = heard.initial or heard.batch
        low, high = (heard.low, heard.high) if heard.initial else (own, own)
        if any(not low <= batch <= high for batch in self.batches):
            allowed = f"from {low} to {high}, the script's batch_range"
            if not heard.initial:
                allowed = f"left out, or {own}: the script's session has no batch_range, so its batch is fixed"
            raise InvalidValue("--batches", ",".join(map(str, self.batches)), allowed)
        batches = sorted(self.batches) or few_batches(own, low, high)
        assert self.at is not None  # noqa: S101 - the caller has looked
        here = Stop(self.at.width, self.at.batch or own)
        all_stops = [Stop(width, batch) for width in self.widths for batch in batches]
        small = [stop for stop in all_stops if (stop.batch or 0) < stop.width]
        self.notes += [f"{stop}: left out, it has fewer samples than workers" for stop in small]
        self._next = [stop for stop in all_stops if stop not in (here, *small)]
        self._next.insert(0, here)
        self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        self.at = self._next.pop(0) if self._next else None
        if self.at is not None:
            self.been.append(self.at)
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._since_s, self._part_s = now_s, max(0.0, self.end_s - now_s) / (1 + len(self._next))


def few_batches(own: int, low: int, high: int) -> list[int]:
    """Some to measure: the least, the most, the script's own, and what lies between in even ratios.

    >>> few_batches(64, 64, 1024), few_batches(64, 64, 64)
    ([64, 161, 406, 1024], [64])
    """
    inner = [round(low * (high / low) ** (at / (FEW - 1))) for at in range(1, FEW - 1)]
    nearest = min(inner, key=lambda batch: abs(math.log(batch / own)))
    if own not in (low, high):
        inner[inner.index(nearest)] = own
    return sorted({low, *inner, high})


def form_of(stop: Stop, forms: Mapping[Form, object]) -> Form | None:
    """The form in which a stop was measured, if it was: its share of the batch, in pieces of a size."""
    if stop.batch is None:
        return None
    share = stop.batch / stop.width
    fits = {form: abs(form[3] * form[4] - share) for form in forms if form[1] == stop.width}
    near = min(fits, key=lambda form: fits[form], default=None)
    return near if near is not None and fits[near] <= near[4] else None


LOOK_S = 0.2  # between two looks where the course has come to


class Goes(Protocol):
    """From stop to stop."""

    at: Stop | None  # None = it is through


@dataclass(frozen=True, slots=True)
class Walk:
    """Unlike other policies it has a memory: its course."""

    course: Goes

    def decide(self, snapshot: Snapshot) -> Plan:
        """The shape of where the course is now; what the job has stays when it is through."""
        draft, at = Draft(snapshot), self.course.at
        for state in (*snapshot.active.values(), *snapshot.waiting.by(arrival)):
            pool = draft.pool_with_room(state.job, 1) if state.shape is None else state.shape.pool
            if at is not None and pool is not None:
                draft.put(state, Shape(pool, at.width, batch=at.batch), f"to be measured: {at}")
        return draft.plan(ask_again_s=snapshot.now_s + LOOK_S)
