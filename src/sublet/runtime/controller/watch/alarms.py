"""Alarms: each is counted, and told in the history at a bounded rate.

Two of them have a rule of their own: credentials of a cloud that end soon, and a cloud that wants fewer calls.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from sublet.machine.wall import WALL, Wall
from sublet.runtime.controller.watch.history import HistoryRow
from sublet.wire.lines import plain_text


class CallOutcome(StrEnum):
    """How a call of the provider went: a label of a metric."""

    OK = "ok"
    REFUSED = "refused"
    ERROR = "error"
    THROTTLED = "throttled"  # too many calls: asked again, in its turn


class ResizeCause(StrEnum):
    """Why a job changes its worker count: a label of a metric."""

    LOSS = "loss"
    NOTICE = "notice"
    GROW = "grow"
    SHRINK = "shrink"


@dataclass(slots=True)
class Histogram:
    """Observations in buckets: `counts[i]` were at most `bounds[i]`, the last is above all."""

    bounds: tuple[float, ...] = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Gauges:
    """Times are wall time."""

    notice_to_commit_s: Histogram = field(default_factory=Histogram)
    recovery_s: Histogram = field(default_factory=Histogram)
    decision_s: Histogram = field(default_factory=Histogram)
    resizes: Counter[str] = field(default_factory=Counter)
    calls: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    orphans: int = 0
    damaged: int = 0  # checkpoints that were passed over
    short_of_memory: int = 0  # times that a step did not fit
    alarms: Counter[str] = field(default_factory=Counter)  # by kind
    reconcile_s: float | None = None
    reconciled_at: float | None = None
    wall: Wall = WALL
    _reconciled: float | None = None  # monotonic

    def count_resize(self, why: ResizeCause) -> None:
        """A job changes its worker count."""
        self.resizes[why] += 1

    def count_call(self, call: str, outcome: CallOutcome) -> None:
        """A provider was asked for something."""
        self.calls[call][outcome] += 1

    def reconciled(self, seconds: float) -> None:
        """The held nodes were compared with those that exist."""
        self.reconcile_s, self.reconciled_at, self._reconciled = seconds, self.wall.unix(), self.wall.monotonic()

    @property
    def reconciled_ago_s(self) -> float | None:
        """Since then; the wall clock, which may be set, is for people only."""
        return None if self._reconciled is None else self.wall.monotonic() - self._reconciled


log = logging.getLogger("sublet.alarms")
EVERY_S = 60.0  # wall, between two lines of one kind about one subject
MOST_REASONS = 8  # of one kind about one subject, told in that time each on its own; those beyond are as one
MOST_LETTERS = 100  # of a reason, that tell it from others
MOST_SUBJECTS = 1024  # remembered; beyond it the oldest is forgotten, and may be told again


class AlarmKind(StrEnum):
    """Kind of trouble: a label of a metric."""

    ACCESS = "access"  # the credentials of a cloud end soon
    ANCHOR = "anchor"  # the keeper of this controller is gone, or fails at something
    ADDRESS = "address"  # a node cannot be reached where it says that it is
    CHECKPOINT = "checkpoint"  # one is on a node's disk only, or cannot be kept
    COPY = "copy"  # another controller has the same state directory
    HISTORY = "history"  # something cannot be told
    IMPOSTOR = "impostor"  # a node speaks for what is not there
    POLICY = "policy"  # it failed, or does not answer
    RELEASE = "release"  # a node cannot be given back, and costs on
    STRAGGLER = "straggler"  # a worker keeps its group waiting
    STORE = "store"  # it is older than what is rented, or grows
    THROTTLED = "throttled"  # a cloud wants fewer calls
    REFUSED = "refused"  # the kernel refused a plan: a fault of the policy


class Alarms:
    """`note` writes a row of history."""

    def __init__(self, gauges: Gauges, note: Callable[[HistoryRow], None], *, wall: Wall = WALL) -> None:
        self.gauges, self._note, self._wall = gauges, note, wall
        # (kind, subject, reason) -> (when, untold since)
        self._told: dict[tuple[AlarmKind, str, str], tuple[float, int]] = {}

    def sound(self, kind: AlarmKind, text: str, *, job_id: str = "", node_id: str = "", reason: str = "") -> None:
        """Something is wrong that people must know of; another `reason` is news, though the rest is the same."""
        self.gauges.alarms[kind] += 1
        wall_s = self._wall.monotonic()
        subject = self._subject(kind, job_id or node_id, reason[:MOST_LETTERS], wall_s)
        told_s, untold = self._told.pop(subject, (-EVERY_S, 0))
        if wall_s - told_s < EVERY_S:
            self._told[subject] = (told_s, untold + 1)
            return
        while len(self._told) >= MOST_SUBJECTS:
            del self._told[next(iter(self._told))]
        self._told[subject] = (wall_s, 0)
        text = plain_text(text) + (f" (and {untold} more like it since the last such line)" if untold else "")
        log.warning("%s: %s", " ".join(filter(None, (kind, job_id, node_id))), text)
        self._note(HistoryRow(kind="Alarm", job_id=job_id, node_id=node_id, text=text))

    def _subject(self, kind: AlarmKind, name: str, reason: str, wall_s: float) -> tuple[AlarmKind, str, str]:
        """Subject of this alarm; one that finds a new reason each time tells only so many."""
        lately = {
            why
            for (k, n, why), (told_s, _) in self._told.items()
            if (k, n) == (kind, name) and wall_s - told_s < EVERY_S
        }
        return (kind, name, reason if reason in lately or len(lately) < MOST_REASONS else "")


A_DAY_S = 86_400.0
SOON_S = A_DAY_S + 3600.0  # wall: people hear of it a day before at the latest
HINT = "log in again, or let it have credentials that renew themselves; without them nothing is rented or given back"


class Access:
    """`left_s` asks the provider: wall seconds until its credentials end; None = they do not, or it is not known."""

    def __init__(self, left_s: Callable[[], float | None], alarms: Alarms) -> None:
        self._left_s, self._alarms = left_s, alarms
        self._told = False

    def check(self) -> None:
        """Now and then. Credentials that were renewed are news when they end in turn."""
        left_s = self._left_s()
        ends_soon = left_s is not None and left_s <= SOON_S
        if left_s is not None and ends_soon and not self._told:
            when = f"end in {left_s / 3600.0:.1f} h" if left_s > 0.0 else "have ended"
            self._alarms.sound(AlarmKind.ACCESS, f"the credentials of the cloud {when}: {HINT}")
        self._told = ends_soon


WORTH_TELLING_S = 5.0  # that the last in the row waits


class Throttling:
    """The `Ear` of a paced provider."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms

    def throttled(self, call: str) -> None:
        """The cloud has said "too many"."""
        self._alarms.gauges.count_call(call, CallOutcome.THROTTLED)

    def waits(self, call: str, waiting: int, last_s: float) -> None:
        """Told where it is worth it, and then about once a minute."""
        if last_s >= WORTH_TELLING_S:
            text = f"the cloud lets us {call} no quicker: {waiting} wait, the last for about {last_s:.0f} s"
            self._alarms.sound(AlarmKind.THROTTLED, text, reason=call)
