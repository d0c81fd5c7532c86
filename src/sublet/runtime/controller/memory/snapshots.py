"""Snapshots of a controller: what the kernel knows, the bill to the grain, the timers that run.

    start = the last snapshot + the events after it

Nothing before it is needed, and what is older is cut from the log (compaction.py); where no snapshot can be read, the
archive of what was cut is.

A snapshot is written when a controller has recovered, every so many events, and when it stops, in the transaction of
the events that it follows. It takes as long as there are jobs and nodes: at least as many events lie between two. One
of another version of the kernel is read as well, but the events after it are followed by their recorded orders
(`sublet.kernel.following`): what this version would have ordered then did not happen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sublet.domain import actions as order
from sublet.domain import events as news
from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.domain.job import Job, Speed
from sublet.domain.timers import Timer, timer_from_text, timer_to_text
from sublet.errors import BadInput, KernelError
from sublet.kernel.following import Follower
from sublet.kernel.journal import Hear, kernel_from_header, kind_from_header, relive, steps_from, version_of
from sublet.kernel.kernel import KERNEL_VERSION, Kernel
from sublet.kernel.snapshots import kernel_from_snapshot, kind_from_snapshot, version_of_snapshot
from sublet.kernel.values_json import Unrecorded, to_plain
from sublet.runtime.controller.inbox import Ending
from sublet.runtime.controller.memory.archive import Compaction, Shelving
from sublet.runtime.controller.memory.context import Context
from sublet.runtime.controller.memory.records import JobRecord, kernel_job
from sublet.runtime.controller.money import MARK_EVERY_S, is_paid, mark
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.store import MetaKey, Store

OUTCOMES = {news.JobFinished: Ending.FINISHED, news.JobFailed: Ending.FAILED, news.JobCancelled: Ending.CANCELLED}


Ended = dict[str, tuple[Ending, float, str]]  # job -> how, when, and why if it failed


class Memory:
    """The legacy of a controller for the next; `adopt` puts a kernel that has lived already in place of a new one."""

    def __init__(
        self,
        context: Context,
        store: Store,
        *,
        adopt: Callable[[Kernel], None],
        save_facts: Callable[[JobRecord], None],
        compaction: Compaction,
        shelving: Shelving,
    ) -> None:
        self._inbox, self._table, self._bill = context.inbox, context.table, context.bill
        self._clock, self._paces, self.store = context.host.clock, context.host.paces, store
        self._adopt, self._save_facts = adopt, save_facts
        self._compaction, self._shelving = compaction, shelving
        self._since = 0  # events since the last snapshot
        self._told: set[str] = set()  # jobs that have ended, and whose last facts are saved
        self._marked = -MARK_EVERY_S  # monotonic
        self.timers: dict[Timer, order.SetTimer] = {}  # that run

    # ------------------------------------------------------------------ writing

    def follow(self, event: Event, actions: list[Action]) -> None:
        """One more event is in the log."""
        self._since += 1
        self._follow_timers(event, actions)
        if isinstance(event, news.BudgetChanged):
            self.store.put(MetaKey.BUDGET_IN_FORCE, json.dumps(to_plain(event.budget)))

    def write_if_due(self) -> None:
        """In the transaction of the events."""
        kernel = self._inbox.kernel
        if self._since >= max(self._paces.events_a_snapshot, len(kernel.jobs) + len(kernel.cluster.nodes)):
            self.write()
            self._compaction.look()

    def write(self) -> None:
        """All of it, as of the last event in the log.

        Not once the store has failed: the kernel has heard then what the log does not have.
        """
        if self._inbox.failure is not None:
            raise self._inbox.failure
        with self.store.transaction():
            for record in self._table.records.values():  # the log before this will not be asked again
                if record.id not in self._told:
                    self._save_facts(record)
            self._shelving.clear()
            self._told = {record_id for record_id in self._table.records if record_id not in self._table.live}
            mark(self.store, self._clock)
            self.store.put(MetaKey.BUDGET_IN_FORCE, json.dumps(to_plain(self._inbox.kernel.supply.budget)))
            facts = {
                "kernel": self._inbox.kernel.facts(),
                "bill": self._bill.snapshot(),
                "timers": {timer_to_text(timer): each.at_s for timer, each in self.timers.items()},
            }
            self.store.add_snapshot(KERNEL_VERSION, json.dumps(facts, separators=(",", ":")))
        self._since = 0

    def take_back(self, job_id: str) -> JobRecord | None:
        """A job that is on the shelf and was asked for; None if there is none."""
        with self.store.transaction():
            record = self._shelving.take_back(job_id)
            if record is not None:
                self.write()
        return record

    def mark(self) -> None:
        """A sign of life, while it matters for the bill when this controller was last seen."""
        wall_s = self._clock.wall.monotonic()
        kernel = self._inbox.kernel
        if wall_s - self._marked >= MARK_EVERY_S and (kernel.cluster.nodes or is_paid(kernel)):
            self._marked = wall_s
            mark(self.store, self._clock)

    # ------------------------------------------------------------------ reading

    def jobs(self) -> Iterator[JobRecord]:
        """Those that an earlier controller left in the store."""
        return self._shelving.stored.read()

    def read(self) -> int:
        """Bring the controller to where the log ends; the number of events that had to be read for it."""
        for seq, state in (*self.store.snapshots(), (0, None)):
            self._bill.replaying = True
            try:
                return self._read_from(seq, None if state is None else json.loads(state))
            except (ValueError, KeyError, TypeError, BadInput):
                if state is None:
                    raise
                text = f"the snapshot after event {seq} cannot be read: an older one is used"
                self._inbox.note(HistoryRow(kind="Alarm", text=text))
            finally:
                self._bill.replaying = False
        raise AssertionError  # without a snapshot there is the whole log

    def _read_from(self, seq: int, snapshot: dict[str, Any] | None) -> int:
        header = self.store.get(MetaKey.HEADER)
        if header is None or not self.store.last_seq():
            return 0  # the first start
        version = version_of(header) if snapshot is None else version_of_snapshot(snapshot["kernel"])
        ended = self._live_again(seq, snapshot, json.loads(header)) if version == KERNEL_VERSION else None
        if ended is None:
            ended = self._follow(seq, snapshot, json.loads(header))
        self._bill.settle(self._inbox.kernel.now_s)
        self._note_outcomes(ended)
        return self.store.last_seq() - seq

    def _live_again(self, seq: int, snapshot: dict[str, Any] | None, header: dict[str, Any]) -> Ended | None:
        """By the same version, which orders what it ordered then; None where it does not.

        That may be: how fast jobs go is not in the log, and today it is known better.
        """
        if snapshot is None:
            self._adopt(kernel_from_header(header))
        else:
            self._adopt(kernel_from_snapshot(snapshot["kernel"], speed_of=self._speed))
        self._begin(snapshot)
        try:
            return self._relive(seq, self._inbox.kernel.handle)
        except KernelError:
            return None

    def _follow(self, seq: int, snapshot: dict[str, Any] | None, header: dict[str, Any]) -> Ended:
        """By another version, or with other knowledge: what was ordered is what happened."""
        if snapshot is None:
            follower = kind_from_header(header, Follower)
        else:
            follower = kind_from_snapshot(snapshot["kernel"], Follower, speed_of=self._speed)
        self._adopt(follower)
        self._begin(snapshot)

        def follow(event: Event, recorded: Sequence[Action]) -> Sequence[Action]:
            follower.follow(event, recorded)
            return recorded

        ended = self._relive(seq, follow)
        self._bill.settle(follower.now_s)
        follower.arrive()
        booked = self._bill.snapshot()
        self._adopt(kernel_from_snapshot(json.loads(json.dumps(follower.facts())), speed_of=self._speed))
        self._bill.restore(booked)
        return ended

    def _begin(self, snapshot: dict[str, Any] | None) -> None:
        self._bill.restore({} if snapshot is None else snapshot["bill"])
        timers = {} if snapshot is None else snapshot["timers"]
        running = [order.SetTimer(timer_from_text(name), at_s) for name, at_s in timers.items()]
        self.timers = {each.timer: each for each in running}
        self._table.submitted.clear()
        self._table.submitted.update(
            r.id for r in self._table.records.values() if r.outcome or r.id in self._inbox.kernel.jobs
        )

    def _relive(self, seq: int, handle: Hear) -> Ended:
        """The events after this one; how jobs have ended in them."""
        ended: Ended = {}

        def hear(event: Event, recorded: Sequence[Action]) -> Sequence[Action]:
            jobs = self._bill.before(event)
            orders = handle(event, recorded)
            self._bill.after(event, jobs, orders)
            return orders

        lines = self._compaction.lines(after=seq)
        for step in relive(steps_from(lines, source="log", first=seq + 1, speed_of=self._speed), hear):
            self._after(step.event, step.orders, ended)
        return ended

    def _speed(self, job: Job) -> Speed:
        """Today's knowledge serves."""
        record = self._table.records.get(job.id)
        return Unrecorded() if record is None else kernel_job(record, self._clock.speedup).speed

    def _after(self, event: Event, recorded: list[Action], ended: Ended) -> None:
        self._follow_timers(event, recorded)
        if isinstance(event, news.JobSubmitted):
            self._table.submitted.add(event.job.id)
            ended.pop(event.job.id, None)  # it was tried once more
        elif isinstance(event, news.JobFinished | news.JobFailed | news.JobCancelled):
            why = event.why if isinstance(event, news.JobFailed) else ""
            ended[event.job_id] = (OUTCOMES[type(event)], event.at_s, why)

    def _note_outcomes(self, ended: Ended) -> None:
        """How a job ended stands in the log, whatever the facts of its record say. What was for what, they say."""
        for job_id, (outcome, at_s, why) in ended.items():
            if (record := self._table.records.get(job_id)) is not None:  # else it is on the shelf
                record.outcome, record.ended_s = record.outcome or outcome, record.ended_s or at_s
                record.error = record.error or why
        for record in self._table.records.values():
            self._bill.take_over(record.id, record.grains, record.outcome)
        self._shelving.fold()

    def _follow_timers(self, event: Event, actions: list[Action]) -> None:
        if isinstance(event, news.TimerFired):
            set_to = self.timers.get(event.timer)
            if set_to is not None and set_to.at_s <= event.at_s:  # else it was set anew, and runs still
                del self.timers[event.timer]
        self.timers |= {action.timer: action for action in actions if isinstance(action, order.SetTimer)}
