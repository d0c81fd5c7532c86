"""Reports of workers become knowledge about their job: speed, progress, checkpoints, and work that was for nothing."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace
from typing import assert_never

from sublet.domain import events as news
from sublet.domain.plan import Phase
from sublet.errors import InvalidValue
from sublet.perf.pollux.fit import load_solver
from sublet.runtime.controller.inbox import Ending, Hold
from sublet.runtime.controller.jobs.attempts import Attempts
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.jobs.node_loss import NodeLosses
from sublet.runtime.controller.jobs.sizes import LearnedSizes
from sublet.runtime.controller.jobs.stragglers import Stragglers
from sublet.runtime.controller.memory import ASKS, Context, JobRecord, kind_of
from sublet.runtime.controller.watch import HistoryRow, gist_of
from sublet.runtime.group.failures import ending_of, is_kill
from sublet.runtime.group.protocol import GroupNews, Outcome
from sublet.wire import messages as wire

TOO_WIDE_S = 3600.0  # wall, for which a width that a job could not train at is not tried again


class Answers:
    """Of the groups of all jobs."""

    def __init__(
        self, context: Context, jobs: Lifecycle, *, attempts: Attempts, losses: NodeLosses, sizes: LearnedSizes
    ) -> None:
        self._inbox, self._bill, self._clock = context.inbox, context.bill, context.host.clock
        self._jobs, self._attempts, self._losses, self._sizes = jobs, attempts, losses, sizes

    def take(self, record: JobRecord, item: GroupNews) -> None:
        """One of them."""
        now_s, state = self._inbox.now_s(), self._inbox.kernel.jobs.get(record.id)
        match item.outcome:
            case Outcome.MOVED:
                record.in_vain = 0
                self._bill.settle_job(record.id, now_s)
                first = state is not None and state.phase is Phase.STARTING
                answer = news.JobStarted if first else news.JobResized
                self._inbox.queue(answer(now_s, record.id, item.generation, record.share, now_s))
                self._losses.moved(record)
                self._attempts.hold_in_place(record)
                self._jobs.save_facts(record)  # a width that was awaited is no longer
            case Outcome.STOPPED:
                self._attempts.unpin(record)  # it holds nothing that it could stay on
                self._inbox.queue(news.JobStopped(now_s, record.id, item.generation, record.share))
                self._jobs.save_facts(record)
            case Outcome.FINISHED:
                self._attempts.check_workers_met(record, self._clock.wall.monotonic())
                self._sizes.finished(record, state)
                self._end(record, Ending.FINISHED, now_s, exit_code=0)
                self._inbox.queue(news.JobFinished(now_s, record.id))
            case Outcome.FAILED:
                self._bill.book_hang(record.id, item.silent_s * self._clock.speedup)
                self._jobs.throw_away(record)
                record.error = record.hide(item.why)
                self._end(record, Ending.FAILED, now_s, exit_code=item.exit_code)
                self._inbox.queue(news.JobFailed(now_s, record.id, _summary(record.error, item.exit_code)))
            case Outcome.RESTARTED:
                self._bill.book_hang(record.id, item.silent_s * self._clock.speedup)
                why = _summary(record.hide(item.why), item.exit_code)
                what = "a worker was killed, and is started" if is_kill(item.exit_code) else "failed and starts"
                self._inbox.note(HistoryRow(kind="Restarted", job_id=record.id, text=f"{what} again: {why}"))
                if record.lost_wall_s is None:
                    record.lost_wall_s = self._clock.wall.monotonic()
                record.in_vain, record.in_vain_why = record.in_vain + 1, why
                record.failed_s = now_s
                self._jobs.save_facts(record)  # or the next controller would count the same end again
            case Outcome.NARROWED:
                self._narrow(record, item, _summary(record.hide(item.why), item.exit_code))
            case Outcome.SESSION:
                self._begin_session(record)
            case _:
                assert_never(item.outcome)

    def _begin_session(self, record: JobRecord) -> None:
        """A script that was submitted as one without a session has opened one: it is started as such, and stays so."""
        self._attempts.unpin(record)
        try:
            spec = replace(record.spec, sdk=True)
        except InvalidValue as error:
            record.blamed = f"it opens a session, which a job like this cannot have: {error}"  # it is given up for that
            return
        text = "opens a session of sublet.train: its workers start again as one group, resized without a restart"
        self._inbox.note(HistoryRow(kind="Session", job_id=record.id, text=text))
        self._jobs.respecify(record, spec)

    def _end(self, record: JobRecord, outcome: Ending, now_s: float, *, exit_code: int | None) -> None:
        if not record.outcome:
            record.outcome, record.ended_s, record.exit_code = outcome, now_s, exit_code
        self._jobs.save_facts(record)

    def _narrow(self, record: JobRecord, item: GroupNews, why: str) -> None:
        """It cannot train at this worker count: it is not planned for a while, even if its owner wants no less."""
        width, until_s = item.width, self._inbox.now_s() + TOO_WIDE_S * self._clock.speedup
        record.narrow(width, item.back_to, why, until_s)
        self._jobs.save_facts(record)
        text = f"cannot train on {width} workers, goes back to fewer and stays below {width} for an hour: {why}"
        self._inbox.note(HistoryRow(kind="Narrowed", job_id=record.id, text=text))
        self._jobs.relearn(record)

    def try_any_width(self, record: JobRecord) -> None:
        """The obstacle to a worker count may be gone by now."""
        if record.too_wide is not None and self._inbox.now_s() >= record.wide_again_s:
            record.allow_any_width()
            self._jobs.relearn(record)


def _summary(why: str, code: int | None) -> str:
    """In one line; how the process ended comes first."""
    last = gist_of(why)
    return last if code is None or ending_of(code) in last else f"{ending_of(code)}: {last}"


MOST_DAMAGED = 100  # checkpoints of a job that are remembered as damaged, so that each is told of once
MOST_NAMED = 10  # in one sentence
SPENT_S = 1.0  # wall, between two words to a worker about what its job costs


class Reports:
    """Of all jobs."""

    def __init__(self, context: Context, jobs: Lifecycle, stragglers: Stragglers) -> None:
        self._inbox, self._bill = context.inbox, context.bill
        self._clock, self._paces = context.host.clock, context.host.paces
        self._gauges, self._noticed_wall = context.alarms.gauges, context.nodes.noticed_wall
        self._jobs, self._stragglers = jobs, stragglers
        self._progress_wall: dict[str, float] = defaultdict(float)  # job -> when its progress was told last
        self._learned_wall: dict[str, float] = defaultdict(float)  # job -> when its speed was told last
        self._solver: threading.Thread | None = None  # loads what curves are fitted with, once a job measures itself
        self._spent_wall: dict[str, float] = defaultdict(float)  # job -> when its log was told last what it costs
        self._cut_to: dict[str, int] = {}  # job -> samples at a time, as its last cut was told

    def learn(
        self, record: JobRecord, message: wire.FromWorkerMessage | wire.AboutWorker, step_before: int, wall_s: float
    ) -> None:
        """Its group has heard this; it was at `step_before` until then."""
        if isinstance(message, wire.Stepped):
            self._stragglers.compare(record, message, wall_s)
            if record.spec.cut and record.grids.learn_units(message):
                self._jobs.relearn(record)  # grids that were never tried can be told now
        if record.spec.cut and isinstance(message, wire.Ready | wire.Stepped | wire.ShortOfMemory):
            places = record.group.places
            if isinstance(message, wire.Stepped):
                places.hear_step(message)
            if record.grids.learn_memory(places.blocks, places.memory) and not record.spec.stages:
                self._deeper(record)
        match message:
            case wire.Joined() if message is record.group.joined:
                self._joined(record, message, max(step_before - message.step, 0), wall_s)
            case wire.Stepped() if message is record.group.stepped:
                self._stepped(record, message, wall_s)
                if message.logs and wall_s - self._spent_wall[record.id] >= SPENT_S:
                    self._spent_wall[record.id] = wall_s
                    self._tell_spent(record, message.worker_id)
            case wire.Damaged():
                self._damaged(record, message)
            case wire.SaveFailed():
                text = f"the checkpoint of step {message.step} was not written, training goes on: {message.why}"
                self._inbox.note(HistoryRow(kind="Alarm", job_id=record.id, text=record.hide(text)))
            case wire.ShortOfMemory():
                self._short(record, message)
            case wire.Saved():
                self._saved(record, message, wall_s)
            case wire.Finished():
                self._jobs.save_facts(record)  # it is said once, and how its script ends may be seen by another
            case _:
                pass

    def _joined(self, record: JobRecord, message: wire.Joined, lost: int, wall_s: float) -> None:
        lost = max(lost, message.redone_steps)
        if lost:
            record.steps_lost += lost
            if record.spec.sdk:  # what the start before of any other came to was booked at its end (`attempts`)
                self._bill.book_redone(record.id, lost, record.steps_made)
        if (at := record.lost_wall_s) is not None:
            record.lost_wall_s = None
            record.tiers.resumed(record.id, message.step, message.source, self._bill, record.steps_made)
            self._gauges.recovery_s.observe(wall_s - at)
            record.pauses_s.append(wall_s - at)
        elif message.formed_s or message.state_s:
            record.pauses_s.append(message.formed_s + message.state_s)
        if record.spec.cut:
            self._moved(record)
        if message.source == "fresh" and not message.step and record.checkpoint_step and not record.start_over:
            text = (
                f"began at step 0 though a checkpoint of step {record.checkpoint_step} was saved: its workers do not "
                "find it; next: give checkpoint.uri a place that all nodes see, s3://bucket/prefix for one"
            )
            self._inbox.note(HistoryRow(kind="Alarm", job_id=record.id, text=text))
            record.checkpoint_step = None
        record.start_over = False
        if record.started_s is None:
            record.started_s = self._inbox.now_s()
            self._jobs.relearn(record)  # how much work it is, is known now

    def _moved(self, record: JobRecord) -> None:
        """All are in the places of a grid: what that cost is learned, and told."""
        places = record.group.places
        record.grids.blocks = places.blocks
        pause = record.grids.learn_change(places.joined.values(), places.formed)
        if pause is not None and places.formed is not None:
            most = max(joined.moved_bytes for joined in places.joined.values()) / 1e6
            kind = kind_of(places.joined.values())
            text = f"is {places.formed} ({kind}): {most:.1f} MB at most to one, {pause.seconds:.2f} s"
            self._inbox.note(HistoryRow(kind="Moved", job_id=record.id, text=text))
            if record.started_s is not None:
                self._jobs.relearn(record)  # the next plan counts with what this one took

    def _stepped(self, record: JobRecord, message: wire.Stepped, wall_s: float) -> None:
        if record.spec.sdk:  # a loop of a script's own says nothing of a loss
            record.curve.add(message.step, message.loss)
        state = self._inbox.kernel.jobs.get(record.id)
        if state is None or not record.group.work:
            return
        # While another group forms, what is heard is of the one before: not of the workers and nodes that it will have.
        if message.profile is not None and self._solver is None:
            self._solver = threading.Thread(target=load_solver, name="sublet-solver", daemon=True)
            self._solver.start()
        workers = record.group.size if state.phase is Phase.RUNNING else 0
        learned = record.measure(message, state.gpu, workers, max(1, len(state.spread)))
        if learned and wall_s - self._learned_wall[record.id] > self._paces.learn_s:
            self._learned_wall[record.id] = wall_s
            self._jobs.relearn(record)
        if wall_s - self._progress_wall[record.id] > self._paces.progress_s:
            self._progress_wall[record.id] = wall_s
            self._inbox.queue(news.ProgressReported(self._inbox.now_s(), record.id, record.share))

    def _tell_spent(self, record: JobRecord, worker_id: str) -> None:
        """Its cost so far, for the log that one of its workers keeps."""
        if (worker := record.group.workers.get(worker_id)) is not None:
            self._bill.settle_job(record.id, self._inbox.now_s())
            told = wire.Spent(
                worker_id=worker_id,
                usd=self._bill.jobs[record.id].total.usd,
                resizes=record.resizes,
                preemptions=record.noticed + record.unnoticed,
            )
            record.group.outbox.append((worker.node_id, told))

    def _saved(self, record: JobRecord, message: wire.Saved, wall_s: float) -> None:
        """On a node's own disk it is written, and not saved: it counts when the controller has it, or a bucket."""
        if message.part:
            return  # of a grid: it counts when all of it is committed, which part 0 says
        record.write_s = message.seconds
        record.tiers.saved(record.id, message, self._bill, self._clock.speedup)
        if not message.safe:
            return
        if message.step >= 0:
            record.checkpoint_step = message.step
        for node_id, at in self._noticed_wall.items():
            if any(worker.node_id == node_id for worker in record.group.workers.values()):
                self._gauges.notice_to_commit_s.observe(wall_s - at)

    def _deeper(self, record: JobRecord) -> None:
        """It needs another number of parts than was thought; the next plan and the next controller are to know."""
        grids = record.grids
        text = grids.memory.describe(grids.blocks, grids.least_parts)
        self._inbox.note(HistoryRow(kind="Memory", job_id=record.id, text=text))
        self._jobs.save_facts(record)
        state = self._inbox.kernel.jobs.get(record.id)
        if (
            state is not None and 0 < state.gpus < grids.least_parts
        ):  # it would wait with them for ever: it lets them go
            self._inbox.queue(news.JobChanged(self._inbox.now_s(), replace(self._jobs.describe(record), paused=True)))
        self._jobs.relearn(record)

    def _short(self, record: JobRecord, message: wire.ShortOfMemory) -> None:
        """Its workers take fewer samples at a time; the next controller is to know. Each of them says so: told once."""
        if record.spec.cut and not message.micro_batch:  # its part: that is told of where the number of parts changes
            self._gauges.short_of_memory += 1
            return
        if 0 < self._cut_to.get(record.id, 0) <= message.micro_batch:
            return
        self._cut_to[record.id] = message.micro_batch
        self._gauges.short_of_memory += 1
        text = (
            f"{message.samples} samples at a time did not fit into the memory of {message.worker_id}: "
            f"{message.micro_batch} from now on, accumulated to the same batch; no retry is used"
        )
        self._inbox.note(HistoryRow(kind="Memory", job_id=record.id, text=text))
        self._jobs.save_facts(record)

    def _damaged(self, record: JobRecord, message: wire.Damaged) -> None:
        """Checkpoints were passed over; if none is left, its owner decides what now."""
        new = sorted(set(message.paths) - record.damaged)
        record.damaged.update(new[: max(0, MOST_DAMAGED - len(record.damaged))])
        self._gauges.damaged += len(new)
        if new:
            used = "none is left" if message.step < 0 else f"that of step {message.step} is used"
            which = ", ".join(new[:MOST_NAMED]) + (f" and {len(new) - MOST_NAMED} more" if new[MOST_NAMED:] else "")
            text = f"{len(new)} damaged, {used}: {which} ({message.why})"
            self._inbox.note(HistoryRow(kind="Damaged", job_id=record.id, text=record.hide(text)))
        if message.step < 0 and not record.paused:
            text = f"is held: {ASKS} next: sublet resume {record.id} tries again, with --start-over it begins at step 0"
            self._inbox.note(HistoryRow(kind="Alarm", job_id=record.id, text=text))
            record.paused = Hold.DAMAGED
            self._jobs.relearn(record)
