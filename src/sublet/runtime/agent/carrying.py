"""Checkpoints on a node's own disk are carried to the controller, behind all other messages.

The agent offers the newest checkpoint of each job and sends the parts that it is asked for; what was not answered is
offered again, also on a new line. A worker that has ended as it should counts as there until what it saved is carried,
so that its node is not given back before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.snapshots import MOST_FILES, Finder, Found, Snapshot, Spoiled
from sublet.wire.exits import EXIT_LEFT
from sublet.wire.messages import WorkerDown
from sublet.wire.saves import HURRY_S, Carried, Offered, Uncarried
from sublet.wire.travel import Lacks, Part, Preparing

__all__ = ["Carrying"]

AGAIN_S = 10.0  # without a word about what was offered: offer it again
TELL_S = 5.0  # that a worker which has ended is held, so that it is not waited for in vain
STALLED_S = 60.0  # without a part that is asked for and was not sent before, while a worker is held: it is given up
MOST_TRIES = 5  # at one checkpoint that changes while it is read, before that is told
ORDERLY = frozenset({0, EXIT_LEFT, -15})  # ends of workers that may have saved a last time

Say = Callable[[Offered | Part | Preparing | Uncarried], None]


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
