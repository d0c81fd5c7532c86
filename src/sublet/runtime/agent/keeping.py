"""Checkpoints on a node's own disk: where its workers find them, carried to the controller, and brought from there.

The agent offers the newest checkpoint of each job and sends the parts that it is asked for; what was not answered is
offered again, also on a new line. A worker that has ended as it should counts as there until what it saved is carried,
so that its node is not given back before.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.reading import holds_files
from sublet.runtime.agent.snapshots import MOST_FILES, Finder, FolderFinder, Found, Restoring, Snapshot, Spoiled, Steps
from sublet.wire.files import (
    DISK,
    HURRY_S,
    Brought,
    Carried,
    Lacks,
    Newest,
    Offered,
    Part,
    Preparing,
    Saved,
    Uncarried,
    Wants,
)
from sublet.wire.messages import EXIT_LEFT, FromWorker, StartWorker, WorkerDown

AGAIN_S = 10.0  # without a word about what was offered: offer it again
TELL_S = 5.0  # that a worker which has ended is held, so that it is not waited for in vain
STALLED_S = 60.0  # without a part that is asked for and was not sent before, while a worker is held: it is given up
MOST_TRIES = 5  # at one checkpoint that changes while it is read, before that is told
ORDERLY = frozenset({0, EXIT_LEFT, -15})  # ends of workers that may have saved a last time


@dataclass(slots=True)
class _Job:
    finder: Finder
    worker_id: str  # the last that is known to have saved here, or to have started
    found: Found | None = None  # what is being carried
    snapshot: Snapshot | None = None
    began_s: float = 0.0  # when its files were first read ...
    read_s: float = 0.0  # ... and how long that took
    offered_s: float | None = None  # when it was last; None = it is still being read
    urgent: bool = False  # its last worker here has ended, or its node will be taken
    tries: int = 0  # at what is being carried
    moved_s: float = 0.0  # when something of it last went ...
    sent: set[str] = field(default_factory=set)  # ... on this line: asking for the same again and again keeps nothing


@dataclass(slots=True)
class _HeldPart:
    down: WorkerDown
    job_id: str
    told_s: float
    until_s: float = float("inf")


class Carrying:
    """The carrier of one node. `tell_end` passes on the end of a worker that was held."""

    def __init__(self, machine: Machine, say: Say, tell_end: Callable[[WorkerDown], None]) -> None:
        self._machine, self._say, self._tell_end = machine, say, tell_end
        self._jobs: dict[str, _Job] = {}
        self.held: dict[str, _HeldPart] = {}  # by worker

    def add(self, job_id: str, worker_id: str, finder: Finder) -> None:
        """A worker of this job saves there."""
        job = self._jobs.setdefault(job_id, _Job(finder, worker_id))
        job.finder, job.worker_id, job.urgent = finder, worker_id, False

    def renew(self, job_id: str) -> None:
        """A worker goes on from here: checkpoints that were offered by earlier ones are offered anew."""
        self._drop(self._jobs[job_id])

    def finder(self, job_id: str) -> Finder | None:
        """The finder of a job that was carried from here."""
        return self._jobs[job_id].finder if job_id in self._jobs else None

    def note_saved(self, job_id: str, worker_id: str) -> None:
        """There is something new."""
        if (job := self._jobs.get(job_id)) is not None:
            job.worker_id = worker_id
            job.finder.touch()

    def hasten(self) -> None:
        """This node will be taken: whatever there is goes now."""
        for job in self._jobs.values():
            job.urgent = True
            job.finder.touch()

    # ------------------------------------------------------------------ the controller

    def hear(self, message: Lacks | Carried) -> None:
        """It lacks parts, or has what was offered."""
        if isinstance(message, Lacks):
            for digest in message.digests:
                self._send_part(digest, sure=digest in message.doubted)
            return
        for job in self._jobs.values():
            if job.snapshot is not None and job.offered_s is not None and job.snapshot.root == message.root:
                if message.why:
                    self._machine.log(f"what {job.worker_id} saved is not carried: {message.why}")
                self._settle(job, carried=not message.why)

    def line_is_new(self) -> None:
        """Messages on the old line may not have arrived."""
        for job in self._jobs.values():
            job.sent.clear()
            if job.offered_s is not None:
                self._offer(job)

    def _send_part(self, digest: str, *, sure: bool) -> None:
        data = None
        for job in self._jobs.values():
            if job.snapshot is not None and job.snapshot.has(digest):
                if (data := job.snapshot.part(digest, sure=sure)) is not None:
                    job.moved_s = job.moved_s if digest in job.sent else self._machine.wall.monotonic()
                    job.sent.add(digest)
                    break
                self._drop(job)
        self._say(Part(digest=digest, data=data or b""))

    # ------------------------------------------------------------------ workers that have ended

    def holds(self, job_id: str, down: WorkerDown, *, always: bool) -> bool:
        """Whether its end is to be told later: what it saved is on its way. `always`: also one that has failed."""
        job, now_s = self._jobs.get(job_id), self._machine.wall.monotonic()
        if job is None or not (always or down.code in ORDERLY):
            return False
        job.urgent = True
        job.finder.touch()
        if job.snapshot is None:
            self._look(job, now_s)
        if job.snapshot is None:
            return False
        job.moved_s = now_s
        self.held[down.worker_id] = _HeldPart(down, job_id, job.moved_s)
        return True

    def hurry(self, worker_id: str) -> None:
        """It is to be gone at once."""
        if (held := self.held.get(worker_id)) is not None:
            held.until_s = min(held.until_s, self._machine.wall.monotonic() + HURRY_S)

    def _let_go(self, worker_id: str) -> None:
        self._tell_end(self.held.pop(worker_id).down)

    # ------------------------------------------------------------------ time

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        due_s = float("inf")
        for job in self._jobs.values():
            if job.snapshot is None:
                due_s = min(due_s, job.finder.due_s())
            else:
                due_s = min(due_s, float("-inf") if job.offered_s is None else job.offered_s + AGAIN_S)
        return min([due_s, *(min(held.told_s + TELL_S, held.until_s) for held in self.held.values())])

    def keep_time(self, now_s: float) -> None:
        """Read on, offer again, and name held workers."""
        for job in self._jobs.values():
            if job.snapshot is None and now_s >= job.finder.due_s():
                self._look(job, now_s)
            if job.snapshot is not None and job.offered_s is None:
                self._read(job, job.snapshot)
            elif job.offered_s is not None and now_s >= job.offered_s + AGAIN_S:
                self._offer(job)
        for worker_id, held in list(self.held.items()):
            self._keep_held(worker_id, held, self._jobs[held.job_id], now_s)

    def _keep_held(self, worker_id: str, held: _HeldPart, job: _Job, now_s: float) -> None:
        if job.snapshot is None and now_s < job.finder.due_s():
            self._let_go(worker_id)
        elif now_s >= held.until_s or now_s >= job.moved_s + STALLED_S:
            why = "it was to be gone at once" if now_s >= held.until_s else f"nothing went for {STALLED_S:g} s"
            self._say(Uncarried(worker_id=worker_id, why=why))
            self._let_go(worker_id)
        elif now_s >= held.told_s + TELL_S:
            if job.moved_s >= held.told_s:
                self._say(Preparing(worker_id=worker_id, what="what it saved is carried to the controller"))
            held.told_s = now_s

    # ------------------------------------------------------------------ from step to step

    def _look(self, job: _Job, now_s: float) -> None:
        """For the newest that the controller may lack."""
        found = job.finder.find(now_s, urgent=job.urgent)
        if found is None:
            return
        same = job.found is not None and job.found.paths == found.paths
        job.found, job.tries = found, job.tries + 1 if same else 0
        if len(found.paths) > MOST_FILES:
            self._say(Uncarried(worker_id=job.worker_id, why=f"it has more than {MOST_FILES:,} files"))
            self._settle(job, carried=False)
            return
        if job.tries >= MOST_TRIES:
            self._say(Uncarried(worker_id=job.worker_id, why="it changes whenever it is read"))
            job.tries = 0
        job.snapshot, job.offered_s = Snapshot(self._machine.disk, job.finder.folder, found.paths), None
        job.began_s = self._machine.wall.monotonic()

    def _read(self, job: _Job, snapshot: Snapshot) -> None:
        job.moved_s = self._machine.wall.monotonic()
        try:
            whole = snapshot.work()
        except Spoiled:
            self._drop(job)
            return
        if whole and job.found is not None and job.finder.is_still(job.found):
            job.read_s = self._machine.wall.monotonic() - job.began_s
            self._offer(job)
        elif whole:
            self._drop(job)

    def _offer(self, job: _Job) -> None:
        found, snapshot = job.found, job.snapshot
        assert found is not None and snapshot is not None  # noqa: S101, PT018 - the callers have looked
        job.offered_s = self._machine.wall.monotonic()
        ago_s = self._machine.wall.unix() - found.written_ns / 1e9 if found.written_ns else 0.0
        self._say(
            Offered(
                worker_id=job.worker_id,
                generation=found.generation,
                root=snapshot.root,
                size_bytes=snapshot.size_bytes,
                step=found.step,
                done=found.done,
                ago_s=max(0.0, ago_s),
                read_s=job.read_s,
            )
        )

    def _settle(self, job: _Job, *, carried: bool) -> None:
        """Nothing more is to be done about what was offered; perhaps about what came since."""
        if job.found is not None:
            job.finder.settle(job.found, carried=carried)
        self._drop(job)
        job.found, job.tries = None, 0

    def _drop(self, job: _Job) -> None:
        job.snapshot, job.offered_s = None, None
        job.sent.clear()
        job.finder.touch()


Say = Callable[[Lacks | Part | Preparing | Offered | Wants | Uncarried], None]


class Keeping:
    """In `folder`. `answer` passes a word on to a worker, `tell_end` the end of one that was held."""

    def __init__(
        self,
        folder: Path,
        machine: Machine,
        say: Say,
        *,
        answer: Callable[[Brought], None],
        tell_end: Callable[[WorkerDown], None],
    ) -> None:
        self._folder, self._machine, self._answer = folder, machine, answer
        self._workers: dict[str, StartWorker] = {}  # those whose checkpoints are carried
        self._brought: dict[str, str] = {}  # scripts that may start: "", or why they cannot
        self.carrying = Carrying(machine, say, tell_end)
        self.restoring = Restoring(folder / "brought", machine, say, self._done)

    def adopt(self, order: StartWorker) -> StartWorker:
        """The order with the directory that is the worker's on this node."""
        place = self._place(order.job_id)
        order = replace(order, env={**order.env, "SUBLET_CHECKPOINT_DIR": place, "SUBLET_CHECKPOINT_TIER": DISK})
        self._workers[order.worker_id] = order
        if not order.watch:
            self.carrying.add(order.job_id, order.worker_id, self._finder(order))
        return order

    def is_here(self, order: StartWorker) -> bool:
        """Whether all files are here for a script, which cannot ask for them. OSError if that cannot be brought."""
        worker_id = order.worker_id
        if not order.watch or worker_id not in self._workers:
            return True
        if worker_id in self._brought:
            if why := self._brought[worker_id]:
                raise OSError(errno.EIO, why)
            return True
        if not self.restoring.is_wanted(worker_id):
            wants = Wants(worker_id=worker_id, generation=int(order.env.get("SUBLET_GENERATION", "0")))
            self.restoring.want(wants, self._place(order.job_id), own=lambda: self._generation_of(order.job_id))
        return worker_id in self._brought

    def brings(self, worker_id: str) -> bool:
        """Something, for this worker."""
        return self.restoring.is_wanted(worker_id)

    def with_resume(self, order: StartWorker) -> StartWorker:
        """The order of a script for which all is here: whether there is something to go on from."""
        if self._brought.pop(order.worker_id, None) is None:
            return order
        resumes = holds_files(self._place(order.job_id), self._machine.disk)
        self._machine.files.make_folder(Path(self._place(order.job_id)))
        return replace(order, env={**order.env, "SUBLET_RESUME": "1" if resumes else "0"})

    def note(self, said: FromWorker) -> None:
        """A worker has said this."""
        message = said.message
        if isinstance(message, Saved) and (order := self._workers.get(message.worker_id)) is not None:
            self.carrying.note_saved(order.job_id, message.worker_id)

    def holds(self, down: WorkerDown) -> bool:
        """Whether the end of a worker is to be told later."""
        self.restoring.forget(down.worker_id)
        self._brought.pop(down.worker_id, None)
        order = self._workers.pop(down.worker_id, None)
        if order is None or (order.watch and not _is_first(order)):
            return False
        if isinstance(finder := self.carrying.finder(order.job_id), FolderFinder):
            finder.watched = False
        return self.carrying.holds(order.job_id, down, always=order.watch)

    def held(self) -> dict[str, str]:
        """Workers that have ended, and whose end is not told yet, with their jobs."""
        return {worker_id: held.job_id for worker_id, held in self.carrying.held.items()}

    def bring(self, wants: Wants) -> None:
        """A worker is to go on from the newest."""
        if (order := self._workers.get(wants.worker_id)) is None:
            self._answer(Brought(worker_id=wants.worker_id))
        else:
            self.restoring.want(wants, self._place(order.job_id))

    def hasten(self) -> None:
        """This node will be taken."""
        self.carrying.hasten()

    def hear(self, message: Lacks | Carried | Newest | Part) -> None:
        """From the controller."""
        if isinstance(message, Lacks | Carried):
            self.carrying.hear(message)
        else:
            self.restoring.hear(message)

    def line_is_new(self) -> None:
        """Messages on the old line may not have arrived."""
        self.carrying.line_is_new()
        self.restoring.line_is_new()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return min(self.carrying.due_s(), self.restoring.due_s())

    def keep_time(self, now_s: float) -> None:
        """As it says."""
        self.carrying.keep_time(now_s)
        self.restoring.keep_time(now_s)

    def _done(self, wants: Wants, step: int, why: str) -> None:
        """The newest is here: that of `step`, or what this node had (-1)."""
        if (order := self._workers.get(wants.worker_id)) is None:
            return
        self._machine.give(order.job_id, self._place(order.job_id))
        if not why and (not order.watch or _is_first(order)):
            finder = self._finder(order)
            self.carrying.add(order.job_id, order.worker_id, finder)
            finder.came(wants.generation, step)
            self.carrying.renew(order.job_id)
            if isinstance(finder, FolderFinder):
                finder.watched = True
        if order.watch:
            self._brought[wants.worker_id] = why
        else:
            self._answer(Brought(worker_id=wants.worker_id, why=why))

    def _finder(self, order: StartWorker) -> Finder:
        known = self.carrying.finder(order.job_id)
        if known is not None and isinstance(known, FolderFinder) == order.watch:  # else it has opened a session since
            return known
        place, machine = self._place(order.job_id), self._machine
        return (
            FolderFinder(place, machine.disk, machine.wall.monotonic()) if order.watch else Steps(place, machine.disk)
        )

    def _generation_of(self, job_id: str) -> int:
        """The generation of the worker that last went on from the files on this disk; -1 = none that we know of."""
        finder = self.carrying.finder(job_id)
        return -1 if finder is None else finder.generation

    def _place(self, job_id: str) -> str:
        return str(self._folder / "checkpoints" / job_id)


def _is_first(order: StartWorker) -> bool:
    """It saves for all, as scripts do."""
    return order.env.get("RANK", order.env.get("SKYPILOT_NODE_RANK", "0")) == "0"
