"""Scripts without a session, start by start: what each start kept, and what to tell of one that keeps nothing.

Such a script says nothing to us. What its agent sees stands for that: files written below SUBLET_CHECKPOINT_DIR are
work that was kept, so is an exit with the code that means "I have saved". A start that ends without either may have
saved where we do not look: its work is unknown until a later start is seen to read it, or to save at last (`unsure`).
Where an earlier start of the job has saved, such a start was for nothing. Until it has saved, no plan moves it by
choice: only the cloud and its owner do. One that saves anew without having read what it had saved has started over all
the same: what had counted as useful was for nothing. A script with `train.checkpointed` says itself what it has loaded
and saved, and its words count for more than what is seen.

A start that has written files below its directory may go on from them when it is started again. So may one that
was not looked at, or of which nothing was seen: it may have saved elsewhere. Once a later start is seen to read one of
those files, all that was done before it was written is kept, and what was done after it is redone. Once one is seen to
save, starts of which nothing was seen have saved nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sublet.domain.money import Money
from sublet.domain.quantity import counted
from sublet.runtime.agent.worker import LOOK_S
from sublet.runtime.controller.inbox import Ending, Hold
from sublet.runtime.controller.jobs.lifecycle import Lifecycle
from sublet.runtime.controller.memory import Context, JobRecord, Start
from sublet.runtime.controller.money import Bill, Purpose
from sublet.runtime.controller.watch import HistoryRow
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LEFT

MANY_STARTS = 3  # from the beginning, after which its owner is told; again at every doubling
UNSEEN = (
    "the file system of its $SUBLET_CHECKPOINT_DIR notes no reads (noatime): whether it loads what it saved is not "
    "known, and it counts as kept"
)
LOOKED_AT_S = 2 * LOOK_S  # wall: an attempt that lived for so long was looked at, so that nothing seen says something
TOLD_AFTER = 3  # starts of unknown work
MOST_STARTS = 50  # starts that are remembered one by one
ALONE_S = 60.0  # wall, of several workers of which none has looked for another, until their owner is told


@dataclass(slots=True)
class _Attempt:
    """One start of all its workers."""

    round: str  # of its workers, as in their names
    began_wall_s: float
    kept: bool = False
    met: bool = False  # its workers speak with one another
    wide: int = 0  # workers
    failed: bool = False  # by itself: that it starts over is no surprise
    loaded: str = ""  # as in WorkerSeen
    told: bool = False  # ... and it has said so itself
    reader: str = ""  # whose words about that count: the worker that begins; the others may leave it to that one
    reader_seen: bool = True
    looked: bool = False  # at all that lies below its own directory
    trains_s: float | None = None  # cloud, since when
    wrote_s: float | None = None  # cloud, when it last wrote below its own directory
    loaded_s: float | None = None  # cloud, when an earlier start wrote what this one has read
    carried_wall_s: float | None = None  # when that was written which the controller has, and which is not counted yet


class Attempts:
    """The starts of all jobs that have no session."""

    def __init__(self, context: Context, jobs: Lifecycle, carries: Callable[[JobSpec, str], bool]) -> None:
        self._inbox, self._bill, self._clock = context.inbox, context.bill, context.host.clock
        self._jobs, self._carries = jobs, carries
        self._running: dict[str, _Attempt] = {}  # by job

    def prepare_start(self, record: JobRecord, order: wire.StartWorker, wall_s: float) -> wire.StartWorker:
        """The order to start one of its workers; the first of a round begins an attempt."""
        round_ = _round_of(order.worker_id)
        running = self._running.get(record.id)
        if running is None and not record.may_be_kept:
            self._bill.lose_unsaved(record.id)  # of a start that ended while no controller was there
        elif running is None:
            set_aside(record, self._bill, self._inbox.now_s())
        if running is None or running.round != round_:
            self.end_attempt(record)
            self._running[record.id] = _Attempt(round_, wall_s)
            record.start_useful, record.wrote = self._bill.jobs[record.id].useful, None
        worker = record.group.workers.get(order.worker_id)
        first = worker is not None and worker.rank == 0
        if first:
            self._running[record.id].reader, self._running[record.id].reader_seen = order.worker_id, False
        warning = record.warnings.get("starts-over") or record.warnings.get("unsure")
        note = f"sublet: {warning}" if warning else ""
        now_s = self._inbox.now_s()
        record.began_s = now_s if record.began_s is None else record.began_s
        ago_s = (now_s - record.began_s) / self._clock.speedup
        return replace(order, watch=True, reads=first, note=note, began_ago_s=ago_s)

    def hold_in_place(self, record: JobRecord) -> None:
        """Its workers run: it stays as it is until it has saved something.

        One that was promised something else on its way here moves on at once: held to what it has now, it would be told
        to come back as soon as it is there, and so on for ever.
        """
        kernel = self._inbox.kernel
        running, held = self._running.get(record.id), kernel.tenancy.placement.get(record.id, ())
        if running is not None and running.trains_s is None:
            running.trains_s = self._inbox.now_s()
        state = kernel.jobs.get(record.id)
        if running is None or running.kept or not held or state is None or state.shape is None:
            return
        here = (kernel.cluster.nodes[held[0][0]].offer.pool, sum(gpus for _, gpus in held))
        if here == (state.shape.pool, state.shape.gpus):
            self._pin(record, here)

    def have_met(self, record: JobRecord) -> bool:
        """The workers of this start were seen to speak with one another, and none of them works for itself."""
        running = self._running.get(record.id)
        return running is not None and running.met and not record.spec.per_node

    def unpin(self, record: JobRecord) -> None:
        """It has to move whatever it costs, or has nothing to lose any more."""
        self._pin(record, None)

    def observe(self, record: JobRecord, message: object) -> None:
        """Its agent has looked at a worker, or a worker has ended."""
        running = self._running.get(record.id)
        if running is None and isinstance(message, wire.WorkerSeen) and message.worker_id in record.group.workers:
            # It was started by an earlier controller.
            running = self._running[record.id] = _Attempt(_round_of(message.worker_id), self._clock.wall.monotonic())
        if running is None:
            return
        if isinstance(message, wire.WorkerDown) and _round_of(message.worker_id) != running.round:
            return  # of an earlier start, told again
        running.wide = max(running.wide, record.group.size)
        if isinstance(message, wire.WorkerSeen):
            running.met |= message.met
            if message.met:
                record.warnings.pop("apart", None)
            if not running.told:
                running.loaded = message.loaded or running.loaded
                self._note_own_files(record, running, message)
            running.reader_seen |= message.worker_id == running.reader
            if not running.reader_seen:
                return
            if running.carried_wall_s is not None:
                self._note_carried(record, running, running.carried_wall_s)
            elif message.saved_ago_s is not None and not self._carries(record.spec, record.id):
                self._note_save(record, running, message.saved_ago_s * self._clock.speedup)
        elif (
            isinstance(message, wire.WorkerDown)
            and message.code == EXIT_LEFT
            and not self._carries(record.spec, record.id)
        ):
            self._note_save(record, running, 0.0, seen=False)
        elif isinstance(message, wire.WorkerDown) and message.code > 0:
            running.failed = True
        elif isinstance(message, wire.Joined):
            self._note_start(record, running, message)
        elif isinstance(message, wire.Saved) and message.safe and not self._carries(record.spec, record.id):
            self._note_save(record, running, 0.0)

    def _note_own_files(self, record: JobRecord, running: _Attempt, message: wire.WorkerSeen) -> None:
        now_s, speedup = self._inbox.now_s(), self._clock.speedup
        running.looked |= message.looked
        if message.wrote_ago_s is not None:
            record.wrote, running.wrote_s = True, now_s - message.wrote_ago_s * speedup
        elif message.looked and record.wrote is None and record.start_useful and running.loaded:
            record.wrote = False  # it is known where it saves
        if message.loaded_ago_s is not None:
            running.loaded_s = now_s - message.loaded_ago_s * speedup

    def _note_start(self, record: JobRecord, running: _Attempt, message: wire.Joined) -> None:
        """It says what it goes on from; its start took what the next change of its worker count costs."""
        running.loaded, running.told = "no" if message.source == "fresh" else "yes", True
        running.reader_seen, record.wrote = True, False  # nothing but what it says that it saved
        if record.lost_wall_s is None:  # else it is counted from the loss on
            record.pauses_s.append(self._clock.wall.monotonic() - running.began_wall_s)

    def note_carried(self, record: JobRecord, worker_id: str, ago_s: float) -> None:
        """The controller has what it wrote so long ago (wall): now it is kept. Not before the reader was looked at."""
        running = self._running.get(record.id)
        if running is None or _round_of(worker_id) != running.round:
            return
        running.carried_wall_s = self._clock.wall.monotonic() - ago_s
        if running.reader_seen:
            self._note_carried(record, running, running.carried_wall_s)

    def _note_carried(self, record: JobRecord, running: _Attempt, written_wall_s: float) -> None:
        running.carried_wall_s = None
        self._note_save(record, running, (self._clock.wall.monotonic() - written_wall_s) * self._clock.speedup)

    def check_apart(self, record: JobRecord, wall_s: float) -> None:
        """Several workers that never look for one another train as many models."""
        running = self._running.get(record.id)
        if running is None or running.met or record.group.size <= 1 or "apart" in record.warnings:
            return
        if record.spec.per_node:
            return  # how those of several nodes meet is their own affair: one may well work for all
        if wall_s - running.began_wall_s > ALONE_S:
            self._warn(record, "apart", _describe_apart(record.group.size, "may train"))

    def check_workers_met(self, record: JobRecord, wall_s: float) -> None:
        """It is done; if its workers never met, what for is not known."""
        running = self._running.get(record.id)
        if running is None or running.met or running.wide <= 1 or record.spec.per_node:
            return
        if wall_s - running.began_wall_s > LOOKED_AT_S:
            record.apart = _describe_apart(running.wide, "trained")
            self._warn(record, "apart", record.apart)

    def end_attempt(self, record: JobRecord) -> None:
        """Its workers have ended, and it has not; what they did since the last save was for nothing."""
        running = self._running.pop(record.id, None)
        finished = record.outcome is Ending.FINISHED
        if running is not None and finished and record.start_useful and _starts_anew(record, running):
            self._start_over(record, at_most=self._bill.jobs[record.id].unknown)  # it may have had little to do
        if running is not None:
            self._settle_earlier(record, running)
        bill, now_s = self._bill, self._inbox.now_s()
        if running is not None and not finished and record.may_be_kept:  # one that has failed may be resumed
            bill.settle_job(record.id, now_s)
            set_aside(record, bill, now_s, began_s=running.trains_s, wrote_s=running.wrote_s, looked=running.looked)
        if running is None or record.outcome or record.paused is Hold.CANCEL:
            return
        record.warnings.pop("apart", None)
        self._tell_unsure(record)
        bill.settle_job(record.id, now_s)
        bill.lose_unsaved(record.id)
        self.unpin(record)
        if running.kept or running.failed or running.loaded == "yes" or record.unsure or record.may_be_kept:
            return
        if record.paused in (Hold.BACK_OFF, Hold.GIVEN_UP):  # other words are told of these
            return
        counted_before = _starts_anew(record, running) and record.start_useful is None  # when it wrote anew
        if not counted_before:
            self._count_start_over(record)

    def _settle_earlier(self, record: JobRecord, running: _Attempt) -> None:
        """It went on from what an earlier start wrote: that was kept, as far as it had come by then."""
        if running.loaded_s is not None and record.unsure:
            settle_earlier(record, self._bill, running.loaded_s)
            record.warnings.pop("unsure", None)
            self._jobs.save_facts(record)

    def _tell_unsure(self, record: JobRecord) -> None:
        if (text := describe_unknown(record)) and "unsure" not in record.warnings:
            self._warn(record, "unsure", text)
        elif text:
            record.warnings["unsure"] = text

    def _count_start_over(self, record: JobRecord) -> None:
        record.starts_over += 1
        many = MANY_STARTS if record.loads else 1  # one that was seen not to load is told of at once
        if record.starts_over >= many:
            text = _advise(record, self._bill.jobs[record.id].split())
            again = record.starts_over / many
            if again == int(again) and int(again).bit_count() == 1:
                self._warn(record, "starts-over", text)
            record.warnings["starts-over"] = text

    def remember(self, record: JobRecord) -> None:
        """After a restart of the controller."""
        if text := describe_unknown(record):
            record.warnings["unsure"] = text
        if record.starts_over >= (MANY_STARTS if record.loads else 1) and not record.spec.sdk:
            told = self._bill.jobs[record.id].split()
            record.warnings["starts-over"] = _advise(record, told)

    def _note_save(self, record: JobRecord, running: _Attempt, ago_s: float, *, seen: bool = True) -> None:
        self._bill.settle_job(record.id, self._inbox.now_s())
        self._settle_earlier(record, running)
        if seen and record.unsure:  # where it saves is known now
            lose_unseen(record, self._bill)
            if not describe_unknown(record):
                record.warnings.pop("unsure", None)
        anew = _starts_anew(record, running)
        if anew and record.start_useful is not None:
            self._start_over(record, at_most=record.start_useful)
        self._bill.keep_work(record.id, ago_s)
        if anew:
            return  # it stays where it is: it would start over again
        if running.loaded == "unknown" and record.start_useful and "unseen" not in record.warnings:
            self._warn(record, "unseen", UNSEEN)
        record.start_useful, record.loads = None, True  # as far as anybody can see
        if not running.kept:
            running.kept = True
            record.starts_over = 0
            record.warnings.pop("starts-over", None)
            self.unpin(record)

    def _start_over(self, record: JobRecord, *, at_most: int) -> None:
        """It is past the point where it would have read what it had saved: that was for nothing."""
        self._bill.jobs[record.id].throw_away(min(record.start_useful or 0, at_most))
        record.start_useful, record.loads = None, False
        self._count_start_over(record)
        self._jobs.save_facts(record)

    def _pin(self, record: JobRecord, where: tuple[str, int] | None) -> None:
        if record.pinned != where:
            record.pinned = where
            self._jobs.relearn(record)

    def _warn(self, record: JobRecord, what: str, text: str) -> None:
        record.warnings[what] = text
        self._inbox.note(HistoryRow(kind="Alarm", job_id=record.id, text=text))


def _round_of(worker_id: str) -> str:
    """As in its name."""
    return worker_id.rsplit(".", 2)[1]


def _describe_apart(wide: int, train: str) -> str:
    return (
        f"its {wide} workers have not connected to one another: they {train} {wide} models. "
        "Initialise torch.distributed in the script, or use --workers 1"
    )


def _starts_anew(record: JobRecord, running: _Attempt) -> bool:
    """There was work of an earlier start to read, and it was not read. What others left there is none of it."""
    before = not record.loads if record.start_useful is None else record.start_useful > 0
    return running.loaded == "no" and before


def _advise(record: JobRecord, bill: Mapping[str, int]) -> str:
    over = f"has started over {counted(record.starts_over, 'time')}, USD {Money(bill['redone']).usd:.2f} for nothing"
    if not record.loads:
        return (
            f"{over}: it saves but does not load: a start has not read what the one before it left in "
            "$SUBLET_CHECKPOINT_DIR. Load that at the start (init_from=resume, resume_from_checkpoint), "
            "use sublet.train, or rent on demand"
        )
    return (
        f"{over}: nothing was saved in "
        "$SUBLET_CHECKPOINT_DIR. Save there and load it at the start, use sublet.train, or rent on demand"
    )


# ---------------------------------------------------------------------- work that is unknown


def set_aside(
    record: JobRecord,
    bill: Bill,
    now_s: float,
    *,
    began_s: float | None = None,
    wrote_s: float | None = None,
    looked: bool = False,
) -> None:
    """It has ended, and its work is unknown."""
    grains = bill.jobs[record.id].unknown - bill.unsure(record.id)
    if grains <= 0:
        return
    if began_s is None:  # under an earlier controller
        began_s = record.unsure[-1].ended_s if record.unsure else record.began_s
    began_s = now_s if began_s is None else began_s
    if looked and wrote_s is None:
        wrote_s = began_s  # of all that it did, nothing was seen
    record.unsure.append(Start(began_s, wrote_s, now_s, grains))
    if len(record.unsure) > MOST_STARTS:
        first, second, *others = record.unsure
        record.unsure = [Start(first.began_s, second.wrote_s, second.ended_s, first.grains + second.grains), *others]


def settle_earlier(record: JobRecord, bill: Bill, loaded_s: float) -> None:
    """A file that was written at this time was read: the starts before that went on from one another."""
    account = bill.jobs[record.id]
    for start in record.unsure:
        kept = start.grains_by(min(loaded_s, start.ended_s if start.wrote_s is None else start.wrote_s))
        account.keep(kept)
        account.move(Purpose.REDONE, start.grains - kept)
    record.unsure.clear()


def lose_unseen(record: JobRecord, bill: Bill) -> None:
    """It is seen where it saves: the starts of which nothing was seen there were for nothing."""
    unseen = [start for start in record.unsure if not _may_have_written(start)]
    bill.jobs[record.id].move(Purpose.REDONE, sum(start.grains for start in unseen))
    record.unsure = [start for start in record.unsure if _may_have_written(start)]


def _may_have_written(start: Start) -> bool:
    return start.wrote_s is None or start.wrote_s > start.began_s


def describe_unknown(record: JobRecord) -> str:
    """A warning for its owner; "" = nothing yet."""
    if len(record.unsure) < TOLD_AFTER:
        return ""
    usd = Money(sum(start.grains for start in record.unsure)).usd
    again, unknown = f"was started again {counted(len(record.unsure), 'time')}", f"what USD {usd:.2f} were for"
    if not any(_may_have_written(start) for start in record.unsure):
        return (
            f"{again}, and nothing that it saved was seen below its directory: whether it resumed is unknown, as is "
            f"{unknown}. Save in $SUBLET_CHECKPOINT_DIR and load it at the start, or use train.checkpointed"
        )
    return (
        f"{again}, and whether it went on from the files that it wrote is unknown, as is {unknown}: "
        "save in $SUBLET_CHECKPOINT_DIR and load it at the start"
    )
