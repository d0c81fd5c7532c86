"""Scripts without a session, start by start: what each start kept, and what to tell of one that keeps nothing.

Such a script says nothing to us. What its agent sees stands for that: files written below SUBLET_CHECKPOINT_DIR are
work that was kept, so is an exit with the code that means "I have saved"; a start that ends without either was for
nothing. Until it has saved, no plan moves it by choice: only the cloud and its owner do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sublet.domain.money import Money
from sublet.runtime.blame import BACK_OFF
from sublet.runtime.members import LEFT_ON_ORDER
from sublet.runtime.record import GIVEN_UP, JobRecord
from sublet.runtime.telling import Line
from sublet.wire import messages as wire

if TYPE_CHECKING:
    from sublet.runtime.controller import Controller

__all__ = ["Attempts"]

MANY_STARTS = 3  # from the beginning, after which its owner is told; again at every doubling
ALONE_S = 60.0  # wall, of several workers of which none has looked for another, until their owner is told


@dataclass(slots=True)
class _Attempt:
    """One start of all its workers."""

    round: str  # of its workers, as in their names
    began_wall_s: float
    kept: bool = False
    met: bool = False  # its workers speak with one another
    failed: bool = False  # by itself: that it starts over is no surprise


class Attempts:
    """The starts of all jobs that have no session."""

    def __init__(self, hub: Controller) -> None:
        self._hub = hub
        self._running: dict[str, _Attempt] = {}  # by job

    def dressed(self, record: JobRecord, order: wire.StartWorker, wall_s: float) -> wire.StartWorker:
        """The order to start one of its workers; the first of a round begins an attempt."""
        round_ = order.worker_id.rsplit(".", 2)[1]
        running = self._running.get(record.id)
        if running is None:
            self._hub.bill.lost(record.id)  # of a start that ended while no controller was there
        if running is None or running.round != round_:
            self.over(record)
            self._running[record.id] = _Attempt(round_, wall_s)
        note = f"sublet: {warning}" if (warning := record.warnings.get("starts-over")) else ""
        return replace(order, watch=True, note=note)

    def moved(self, record: JobRecord) -> None:
        """Its workers run: it stays as it is until it has saved something."""
        running, held = self._running.get(record.id), self._hub.kernel.tenancy.placement.get(record.id, ())
        if running is None or running.kept or not held:
            return
        pool = self._hub.kernel.cluster.nodes[held[0][0]].offer.pool
        self._pin(record, (pool, sum(gpus for _, gpus in held)))

    def let_go(self, record: JobRecord) -> None:
        """It has to move whatever it costs, or has nothing to lose any more."""
        self._pin(record, None)

    def heard(self, record: JobRecord, message: object) -> None:
        """Its agent has looked at a worker, or a worker has ended."""
        running = self._running.get(record.id)
        if running is None and isinstance(message, wire.WorkerSeen) and message.worker_id in record.group.workers:
            round_ = message.worker_id.rsplit(".", 2)[1]  # it was started by an earlier controller
            running = self._running[record.id] = _Attempt(round_, time.monotonic())
        if running is None:
            return
        if isinstance(message, wire.WorkerSeen):
            running.met |= message.met
            if message.saved_ago_s is not None:
                self._kept(record, running, message.saved_ago_s * self._hub.clock.speedup)
        elif isinstance(message, wire.WorkerDown) and message.code == LEFT_ON_ORDER:
            self._kept(record, running, 0.0)
        elif isinstance(message, wire.WorkerDown) and message.code > 0:
            running.failed = True

    def tick(self, record: JobRecord, wall_s: float) -> None:
        """Several workers that never look for one another train as many models."""
        running = self._running.get(record.id)
        if running is None or running.met or record.group.size < 2 or "apart" in record.warnings:  # noqa: PLR2004
            return
        if wall_s - running.began_wall_s > ALONE_S:
            text = (
                f"its {record.group.size} workers have not connected to one another: they train {record.group.size} "
                "models. Initialise torch.distributed in the script, or use --workers 1"
            )
            self._warn(record, "apart", text)

    def over(self, record: JobRecord) -> None:
        """Its workers have ended, and it has not; what they did since the last save was for nothing."""
        running = self._running.pop(record.id, None)
        if running is None or record.outcome or record.paused == "cancel":
            return
        record.warnings.pop("apart", None)
        bill = self._hub.bill
        bill.settle_job(record.id, self._hub.now_s())
        bill.lost(record.id)
        self.let_go(record)
        if running.kept or running.failed or record.paused in (BACK_OFF, GIVEN_UP):  # other words are told of these
            return
        record.starts_over += 1
        if record.starts_over >= MANY_STARTS:
            text = _advice(record.starts_over, bill.jobs[record.id].told())
            again = record.starts_over / MANY_STARTS
            if again == int(again) and int(again).bit_count() == 1:
                self._warn(record, "starts-over", text)
            record.warnings["starts-over"] = text

    def remember(self, record: JobRecord) -> None:
        """After a restart of the controller."""
        if record.starts_over >= MANY_STARTS and not record.spec.sdk:
            told = self._hub.bill.jobs[record.id].told()
            record.warnings["starts-over"] = _advice(record.starts_over, told)

    def _kept(self, record: JobRecord, running: _Attempt, ago_s: float) -> None:
        self._hub.bill.settle_job(record.id, self._hub.now_s())
        self._hub.bill.kept(record.id, ago_s)
        if not running.kept:
            running.kept = True
            record.starts_over = 0
            record.warnings.pop("starts-over", None)
            self.let_go(record)

    def _pin(self, record: JobRecord, where: tuple[str, int] | None) -> None:
        if record.pinned != where:
            record.pinned = where
            self._hub.relearn(record)

    def _warn(self, record: JobRecord, what: str, text: str) -> None:
        record.warnings[what] = text
        self._hub.note(Line(kind="Alarm", job_id=record.id, text=text))


def _advice(times: int, bill: Mapping[str, int]) -> str:
    return (
        f"has started over {times} times, USD {Money(bill['redone']).usd:.2f} for nothing: nothing was saved in "
        "$SUBLET_CHECKPOINT_DIR. Save there and load it at the start, use sublet.train, or rent on demand"
    )
