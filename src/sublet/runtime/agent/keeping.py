"""Checkpoints on a node's own disk: where its workers find them, carried to the controller, and brought from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sublet.runtime.agent.carrying import Carrying
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.restoring import Restoring
from sublet.wire.messages import FromWorker, StartWorker, WorkerDown
from sublet.wire.saves import DISK, Brought, Carried, Newest, Offered, Saved, Uncarried, Wants
from sublet.wire.travel import Lacks, Part, Preparing

__all__ = ["Keeping"]

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
        self._folder, self._answer = folder, answer
        self._jobs: dict[str, str] = {}  # worker -> job, of those whose checkpoints are carried
        self.carrying = Carrying(machine, say, tell_end)
        self.restoring = Restoring(folder / "brought", machine, say, self._brought)

    def adopt(self, order: StartWorker) -> StartWorker:
        """The order with the directory that is the worker's on this node."""
        place = self._place(order.job_id)
        self._jobs[order.worker_id] = order.job_id
        self.carrying.add(order.job_id, order.worker_id, place)
        return replace(order, env={**order.env, "SUBLET_CHECKPOINT_DIR": place, "SUBLET_CHECKPOINT_TIER": DISK})

    def note(self, said: FromWorker) -> None:
        """A worker has said this."""
        message = said.message
        if isinstance(message, Saved) and (job_id := self._jobs.get(message.worker_id)) is not None:
            self.carrying.note_saved(job_id, message.worker_id)

    def holds(self, down: WorkerDown) -> bool:
        """Whether the end of a worker is to be told later."""
        self.restoring.forget(down.worker_id)
        job_id = self._jobs.pop(down.worker_id, None)
        return job_id is not None and self.carrying.holds(job_id, down)

    def held(self) -> dict[str, str]:
        """Workers that have ended, and whose end is not told yet, with their jobs."""
        return {worker_id: held.job_id for worker_id, held in self.carrying.held.items()}

    def bring(self, wants: Wants) -> None:
        """A worker is to go on from the newest."""
        if (job_id := self._jobs.get(wants.worker_id)) is None:
            self._answer(Brought(worker_id=wants.worker_id))
        else:
            self.restoring.want(wants, self._place(job_id))

    def hear(self, message: Lacks | Carried | Newest | Part) -> None:
        """From the controller."""
        if isinstance(message, Lacks | Carried):
            self.carrying.hear(message)
        else:
            self.restoring.hear(message)

    def line_is_new(self) -> None:
        """What was said on the old one may not have arrived."""
        self.carrying.line_is_new()
        self.restoring.line_is_new()

    def due_s(self) -> float:
        """When `keep_time` is to be called next."""
        return min(self.carrying.due_s(), self.restoring.due_s())

    def keep_time(self, now_s: float) -> None:
        """As it says."""
        self.carrying.keep_time(now_s)
        self.restoring.keep_time(now_s)

    def _brought(self, wants: Wants, newest: Newest | None, why: str) -> None:
        if newest is not None and not why and (job_id := self._jobs.get(wants.worker_id)) is not None:
            self.carrying.settle(job_id, newest.step)
        self._answer(Brought(worker_id=wants.worker_id, why=why))

    def _place(self, job_id: str) -> str:
        return str(self._folder / "checkpoints" / job_id)
