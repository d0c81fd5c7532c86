"""The output of all jobs: who prints as which rank is written down as orders go out and workers end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sublet.runtime.controller.output_keeper import LogKeeper
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.worker_logs import WorkerLogs
from sublet.runtime.group.failures import ending_of
from sublet.runtime.group.workers import WorkerPhase
from sublet.wire import messages as wire
from sublet.wire.exits import EXIT_LEFT

__all__ = ["JobLogs"]


class JobLogs:
    """The output of every job, below a state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._logs: dict[str, WorkerLogs] = {}
        self.keeper = LogKeeper()

    def of(self, job_id: str) -> WorkerLogs:
        """What its workers print."""
        self._hear_cuts()
        return self._of(job_id)

    def _of(self, job_id: str) -> WorkerLogs:
        if job_id not in self._logs:
            self._logs[job_id] = WorkerLogs(self._state_dir / "jobs" / job_id / "logs")
        return self._logs[job_id]

    def keep_bounds(self, records: Iterable[JobRecord]) -> None:
        """What the workers of these jobs print does not fill the disk: a thread sees to that, and is not waited for."""
        self.keeper.folders = {self._of(each.id).folder: tuple(each.group.workers) for each in records}
        self._hear_cuts()
        if self.keeper.folders:
            self.keeper.begin()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it bounds are kept."""
        try:
            yield
        finally:
            self.keeper.end()

    def _hear_cuts(self) -> None:
        while self.keeper.cut:
            path = self.keeper.cut.popleft()
            self._of(path.parent.parent.name).begin_anew(path.stem)

    def note_rank(self, record: JobRecord, node_id: str, message: wire.ToAgent) -> None:
        """Whose output is that of a rank from now on, if this message to an agent says so."""
        logs = self.of(record.id)
        if isinstance(message, wire.StartWorker):
            worker = record.group.workers.get(message.worker_id)  # None: its node went in the same moment
            logs.add_launch(message.worker_id, node_id, 0 if worker is None else worker.rank)
        elif isinstance(message, wire.Regroup):
            logs.add_order(message.worker_id, node_id, message.rank, message.generation)

    def note_end(self, record: JobRecord, message: wire.WorkerDown) -> None:
        """How a worker ended that nobody had told to."""
        logs = self.of(record.id)
        logs.settle(message.worker_id)
        worker = record.group.workers.get(message.worker_id)
        told = worker is None or worker.phase is WorkerPhase.LEAVING
        if not told and message.code not in (0, EXIT_LEFT):
            logs.add_end(message.worker_id, ending_of(message.code))
