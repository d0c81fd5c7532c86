"""What workers save on a node's own disk is carried to the controller, behind all else that is said.

The agent offers the newest checkpoint of each job and sends the parts that it is asked for; what was not answered is
offered again, also on a new line. A worker that has ended as it should counts as there until what it saved is carried,
so that its node is not given back before.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass

from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.snapshots import Snapshot, Spoiled
from sublet.runtime.agent.steps import Step, steps_in
from sublet.runtime.travel.content import packed_part
from sublet.wire.exits import EXIT_LEFT
from sublet.wire.messages import WorkerDown
from sublet.wire.saves import Carried, Offered, Uncarried
from sublet.wire.travel import Lacks, Part, Preparing

__all__ = ["Carrying"]

AGAIN_S = 10.0  # without a word about what was offered: offer it again
TELL_S = 5.0  # that a worker which has ended is held, so that nobody waits for it in vain
STALLED_S = 60.0  # without a part that was asked for, while a worker is held: it is given up
HURRY_S = 10.0  # for what is left, when a held worker is to be gone at once
MOST_TRIES = 5  # at one checkpoint that changes while it is read
ORDERLY = frozenset({0, EXIT_LEFT, -15})  # ends of workers that may have saved a last time

Say = Callable[[Offered | Part | Preparing | Uncarried], None]


@dataclass(slots=True)
class _Job:
    folder: str
    worker_id: str  # the last that is known to have saved here, or to have started
    settled: int = -1  # the highest step that is carried, or was given up
    step: Step | None = None  # that is being carried
    snapshot: Snapshot | None = None
    offered_s: float | None = None  # when it was last; None = it is still being read
    changed: bool = False  # there may be something new
    tries: int = 0
    moved_s: float = 0.0  # when something of it last went


@dataclass(slots=True)
class _Held:
    down: WorkerDown
    job_id: str
    told_s: float
    until_s: float = float("inf")


class Carrying:
    """Of one node. `tell_end` passes on the end of a worker that was held."""

    def __init__(self, machine: Machine, say: Say, tell_end: Callable[[WorkerDown], None]) -> None:
        self._machine, self._say, self._tell_end = machine, say, tell_end
        self._jobs: dict[str, _Job] = {}
        self.held: dict[str, _Held] = {}  # by worker

    def add(self, job_id: str, worker_id: str, folder: str) -> None:
        """A worker of this job saves there."""
        if job_id in self._jobs:
            self._jobs[job_id].worker_id = worker_id
        else:
            self._jobs[job_id] = _Job(folder, worker_id)

    def note_saved(self, job_id: str, worker_id: str) -> None:
        """There is something new."""
        if (job := self._jobs.get(job_id)) is not None:
            job.worker_id, job.changed = worker_id, True

    def settle(self, job_id: str, step: int) -> None:
        """The controller has this one: it came from there."""
        if (job := self._jobs.get(job_id)) is not None:
            job.settled = max(job.settled, step)

    # ------------------------------------------------------------------ the controller

    def hear(self, message: Lacks | Carried) -> None:
        """It lacks parts, or has what was offered."""
        if isinstance(message, Lacks):
            for digest in message.digests:
                self._send_part(digest)
            return
        for job in self._jobs.values():
            if job.snapshot is not None and job.snapshot.root == message.root:
                if message.why:
                    self._machine.log(f"what {job.worker_id} saved is not carried: {message.why}")
                self._settle(job)

    def line_is_new(self) -> None:
        """What was said on the old one may not have arrived."""
        for job in self._jobs.values():
            if job.offered_s is not None:
                self._offer(job)

    def _send_part(self, digest: str) -> None:
        data = None
        for job in self._jobs.values():
            if job.snapshot is not None and job.snapshot.has(digest):
                if (data := job.snapshot.part(digest)) is not None:
                    job.moved_s = self._machine.wall.monotonic()
                    break
                self._drop(job)
        text = "" if data is None else base64.b64encode(packed_part(data)).decode()
        self._say(Part(digest=digest, data=text))

    # ------------------------------------------------------------------ workers that have ended

    def holds(self, job_id: str, down: WorkerDown) -> bool:
        """Whether its end is to be told later: what it saved is on its way."""
        job = self._jobs.get(job_id)
        if job is None or down.code not in ORDERLY:
            return False
        job.changed = True
        if job.snapshot is None:
            self._look(job)
        if job.snapshot is None:
            return False
        job.moved_s = self._machine.wall.monotonic()
        self.held[down.worker_id] = _Held(down, job_id, job.moved_s)
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
            if job.changed and job.snapshot is None:
                return float("-inf")
            if job.snapshot is not None:
                due_s = min(due_s, float("-inf") if job.offered_s is None else job.offered_s + AGAIN_S)
        return min([due_s, *(min(held.told_s + TELL_S, held.until_s) for held in self.held.values())])

    def keep_time(self, now_s: float) -> None:
        """Read on, offer again, and say who is held."""
        for job in self._jobs.values():
            if job.changed and job.snapshot is None:
                self._look(job)
            if job.snapshot is not None and job.offered_s is None:
                self._read(job, job.snapshot)
            elif job.offered_s is not None and now_s >= job.offered_s + AGAIN_S:
                self._offer(job)
        for worker_id, held in list(self.held.items()):
            self._keep_held(worker_id, held, self._jobs[held.job_id], now_s)

    def _keep_held(self, worker_id: str, held: _Held, job: _Job, now_s: float) -> None:
        if job.snapshot is None and not job.changed:
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

    def _look(self, job: _Job) -> None:
        """For the newest that the controller may lack."""
        job.changed = False
        for step in steps_in(job.folder, self._machine.disk, above=job.settled)[:1]:
            job.tries = job.tries + 1 if job.step is not None and job.step.number == step.number else 0
            job.step, job.offered_s = step, None
            job.snapshot = Snapshot(self._machine.disk, job.folder, step.paths)
            if job.tries >= MOST_TRIES:
                self._say(Uncarried(worker_id=job.worker_id, why=f"step {step.number} changes while it is read"))
                self._settle(job)

    def _read(self, job: _Job, snapshot: Snapshot) -> None:
        job.moved_s = self._machine.wall.monotonic()
        try:
            if snapshot.work():
                self._offer(job)
        except Spoiled:
            self._drop(job)

    def _offer(self, job: _Job) -> None:
        assert job.step is not None and job.snapshot is not None  # noqa: S101, PT018 - the callers have looked
        job.offered_s = self._machine.wall.monotonic()
        self._say(
            Offered(
                worker_id=job.worker_id,
                generation=job.step.generation,
                root=job.snapshot.root,
                size_bytes=job.snapshot.size_bytes,
                step=job.step.number,
                done=job.step.done,
            )
        )

    def _settle(self, job: _Job) -> None:
        """Nothing more is to be done about what was offered; perhaps about what came since."""
        if job.step is not None:
            job.settled = max(job.settled, job.step.number)
        self._drop(job)
        job.tries = 0

    def _drop(self, job: _Job) -> None:
        job.snapshot, job.offered_s, job.changed = None, None, True
