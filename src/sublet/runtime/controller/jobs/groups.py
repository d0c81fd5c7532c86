"""Groups of workers: orders of the kernel go down to them, what they have to say goes to agents and to the kernel.

Nothing goes out before the orders behind it are written down: groups leave their messages in an outbox, and `drain`
sends them once the controller has committed.
"""

from __future__ import annotations

from dataclasses import replace

from sublet.domain import actions as order
from sublet.domain.plan import Phase
from sublet.domain.shape import Grid
from sublet.runtime.controller.files import FileSync
from sublet.runtime.controller.inbox import Hold
from sublet.runtime.controller.jobs.attempts import Attempts
from sublet.runtime.controller.jobs.forms import told, why_resize
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.jobs.node_loss import Blame, NodeLosses
from sublet.runtime.controller.jobs.reports import Answers, Reports
from sublet.runtime.controller.jobs.sizes import LearnedSizes
from sublet.runtime.controller.jobs.stragglers import Stragglers
from sublet.runtime.controller.memory import Context, JobRecord, job_of
from sublet.runtime.engines.protocol import Engine
from sublet.wire import messages as wire
from sublet.wire.files import Saved


class Groups:
    """Of all jobs."""

    def __init__(self, context: Context, jobs: Lifecycle, sync: FileSync, engine: Engine) -> None:
        self._inbox, self._bill, self._clock = context.inbox, context.bill, context.host.clock
        self._table, self._nodes, self._gauges = context.table, context.nodes, context.alarms.gauges
        self._jobs, self.sync, self._engine = jobs, sync, engine
        self._touched: dict[str, JobRecord] = {}  # whose groups may have something to say
        self.attempts = Attempts(context, jobs, sync.carries)
        self.blame = Blame(context.inbox, jobs)
        self.losses = NodeLosses(context, jobs, self.attempts)
        self._reports = Reports(context, jobs, Stragglers(context, jobs))
        self._sizes = LearnedSizes(context, jobs.relearn, jobs.factory.sizes)
        self._answers = Answers(context, jobs, attempts=self.attempts, losses=self.losses, sizes=self._sizes)

    # ------------------------------------------------------------------ orders of the kernel

    def carry_out(self, action: order.StartJob | order.ResizeJob | order.StopJob) -> None:
        """Its group sees to it."""
        record = self._table.records[action.job_id]
        self.touch(record)
        if isinstance(action, order.StopJob):
            record.group.stop(action.generation, resumable=action.resumable, wall_s=self._clock.wall.monotonic())
            return
        if self._nodes.is_void(action.placement):
            return
        if isinstance(action, order.ResizeJob):
            record.resizes += 1
            self._gauges.count_resize(why_resize(record, action, self._inbox.kernel.cluster.nodes))
        seats, form = told(self._inbox.kernel, record, action.shape, action.placement)
        record.group.move(action.generation, seats, action.shape.batch or 0, self._clock.wall.monotonic(), form)

    def prepare(self, job_id: str, grid: Grid | None) -> None:
        """It trains on where it is, and then in this grid; parts that will be needed elsewhere get ready."""
        for record in self._table.at_hand([job_id]):
            record.group.prepare(self._nodes.doomed_s, grid)
            self.touch(record)

    def heal(self, record: JobRecord, *, held: bool = False) -> None:
        """The group follows the last order of the kernel again; if orders were `held` back, it had an older one."""
        state, group = self._inbox.kernel.jobs.get(record.id), record.group
        if state is None or not (group.idle or (held and group.generation < state.generation)):
            return
        kernel = self._inbox.kernel
        placement, form = told(kernel, record, state.runs_in, kernel.tenancy.placement.get(record.id, ()))
        started = state.phase in (Phase.STARTING, Phase.RESIZING, Phase.RUNNING)
        if started and not self._nodes.is_void(placement):
            batch = 0 if state.shape is None or state.shape.batch is None else state.shape.batch
            group.move(state.generation, placement, batch, self._clock.wall.monotonic(), form)
        elif state.phase is Phase.STOPPING:
            group.stop(state.generation, resumable=True, wall_s=self._clock.wall.monotonic())

    def tick(self, record: JobRecord, wall_s: float) -> None:
        """Time has passed for a job that lives."""
        trained = record.group.training
        record.group.tick(wall_s)
        self.heal(record)
        if record.group.training != trained:
            self._bill.settle_job(record.id, self._inbox.now_s(), trained=trained)
        if self._jobs.watch_purse(record):
            record.group.end_now(self._clock.wall.monotonic())
        self.attempts.check_apart(record, wall_s)
        if record.paused is Hold.CANCEL:
            self._jobs.cancel(record)  # if it has left by now
        elif why := record.preempted_too_often or record.blamed:
            self._jobs.give_up(record, why)
        self.blame.end_rest(record, wall_s)
        self.losses.end_wait(record)
        self._answers.try_any_width(record)
        self._sizes.update(record, wall_s)
        self.touch(record)

    # ------------------------------------------------------------------ what workers say

    def worker_said(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        """A worker, or its agent of it."""
        record = self._table.records[job_of(message.worker_id)]
        step = record.group.step
        if isinstance(message, wire.WorkerDown):
            self.sync.logs.note_end(record, message)
        elif isinstance(message, wire.Joined):
            self.sync.logs.of(record.id).confirm_join(message.worker_id, message.generation, message.printed)
        if isinstance(message, wire.Joined | wire.WorkerDown | wire.Broke | wire.Finished):
            self._bill.settle_job(record.id, self._inbox.now_s())  # before it begins or ceases to train
        self.attempts.observe(record, message)
        record.group.hear(message, wall_s)
        self.touch(record)
        self._reports.learn(record, message, step, wall_s)

    def note_carried(self, saved: Saved, ago_s: float) -> None:
        """The controller has a checkpoint that was on a node's disk, after so many seconds of carrying."""
        record = self._table.records[job_of(saved.worker_id)]
        record.carry_s = saved.seconds
        self.attempts.note_carried(record, saved.worker_id, ago_s)
        self.worker_said(replace(saved, seconds=record.write_s), self._clock.wall.monotonic())
        self._inbox.wake()

    # ------------------------------------------------------------------ what groups say

    def touch(self, *records: JobRecord) -> None:
        """Their groups were told something: `drain` will see what they say."""
        self._touched |= {record.id: record for record in records}

    def drain(self) -> None:
        """Pass on what groups have to say, to agents and to the kernel."""
        while self._touched:
            _, record = self._touched.popitem()
            group = record.group
            while group.outbox or group.news:
                outbox = list(group.outbox)
                group.outbox.clear()
                for node_id, message in outbox:
                    self._send(record, node_id, message)
                said = list(group.news)
                group.news.clear()
                for item in said:
                    self._answers.take(record, item)
            if not group.workers:
                self.attempts.end_attempt(record)

    def _send(self, record: JobRecord, node_id: str, message: wire.ToAgent) -> None:
        if isinstance(message, wire.StartWorker):
            self._nodes.jobs_on[node_id].add(record.id)
            message = self.sync.load(message, record.spec)
            if not record.spec.sdk:
                message = self.attempts.prepare_start(record, message, self._clock.wall.monotonic())
        self.sync.logs.note_rank(record, node_id, message)
        self._engine.send(node_id, message)
