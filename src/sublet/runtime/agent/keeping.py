"""Checkpoints on a node's own disk: where its workers find them, carried to the controller, and brought from there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sublet.runtime.agent.carrying import Carrying
from sublet.runtime.agent.machine import Machine
from sublet.runtime.agent.reading import holds_files
from sublet.runtime.agent.restoring import Restoring
from sublet.runtime.agent.snapshots import Finder, FolderFinder, Steps
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
