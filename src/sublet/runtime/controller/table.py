"""Which jobs there are: all that are at hand, those that live, and those that the kernel has heard of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.bill import Bill
from sublet.runtime.controller.records import JobRecord
from sublet.runtime.controller.states import Ending
from sublet.runtime.controller.unsure import may_be_kept

__all__ = ["JobTable"]


@dataclass(frozen=True, slots=True)
class JobTable:
    """By id."""

    records: dict[str, JobRecord] = field(default_factory=dict)  # all but those on the shelf
    live: dict[str, JobRecord] = field(default_factory=dict)  # those that have not ended, or whose workers have not
    submitted: set[str] = field(default_factory=set)  # jobs that the kernel has heard of
    named: dict[str, dict[str, None]] = field(default_factory=dict)  # name -> ids of the records, the oldest first

    def keep(self, record: JobRecord) -> None:
        """Know of a job from now on."""
        self.live[record.id] = record
        self.lay_out(record)

    def lay_out(self, record: JobRecord) -> None:
        """Have a job at hand that has ended, or lives."""
        self.records[record.id] = record
        self.named.setdefault(record.spec.name, {})[record.id] = None

    def put_away(self, record: JobRecord) -> None:
        """It is on the shelf."""
        del self.records[record.id]
        del self.named[record.spec.name][record.id]
        if not self.named[record.spec.name]:
            del self.named[record.spec.name]

    def at_hand(self, job_ids: Iterable[str]) -> list[JobRecord]:
        """Of these jobs; one that is on the shelf has no workers, wherever it had some."""
        return [self.records[job_id] for job_id in job_ids if job_id in self.records]

    def bill(self, kernel: Kernel) -> Bill:
        """Of these jobs."""
        asked = self.trains, self.has_session, self.is_doubtful, self.gpus_at_work, self.unsure_grains
        return Bill(kernel, *asked)

    def trains(self, job_id: str) -> bool:
        """It makes steps, as its workers say, and somebody wants them."""
        record = self.records.get(job_id)
        return record is not None and record.group.training and record.outcome is not Ending.CANCELLED

    def gpus_at_work(self, job_id: str) -> int | None:
        """GPUs on which it makes steps; None = on all that it holds."""
        record = self.records.get(job_id)
        return None if record is None else record.group.working

    def has_session(self, job_id: str) -> bool:
        """It says itself how far it is and what it lost; a script without a session does not."""
        record = self.records.get(job_id)
        return record is None or record.spec.sdk

    def kept(self, job_id: str) -> str:
        """What is left of one that was given up, where nobody was left to save; "" where all of it is."""
        record = self.records.get(job_id)
        if record is None or not record.blamed or record.group.step <= (record.checkpoint_step or 0):
            return ""
        return f"the checkpoint of step {record.checkpoint_step}" if record.checkpoint_step else "nothing"

    def grid(self, job_id: str) -> str:
        """How its workers sit, copies x parts; "" where its model is not cut, or nobody sits."""
        record = self.records.get(job_id)
        return "" if record is None or not record.group.size else str(record.group.places.formed or "")

    def checkpoint_terms(self, job_id: str) -> tuple[int, int] | None:
        """How many checkpoints it keeps, and its newest generation; None for a job that nobody has at hand."""
        record = self.records.get(job_id)
        return None if record is None else (max(1, record.spec.checkpoint_keep), record.group.round.number)

    def is_doubtful(self, job_id: str) -> bool:
        """It has ended, and nobody knows what that is worth."""
        record = self.records.get(job_id)
        if record is None:
            return False
        return bool(record.apart) if record.outcome is Ending.FINISHED else may_be_kept(record)

    def unsure_grains(self, job_id: str) -> int:
        """Of its starts before the present one."""
        record = self.records.get(job_id)
        return 0 if record is None else sum(start.grains for start in record.unsure)
