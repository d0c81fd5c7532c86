"""How far the jobs of a controller have come, for a cloud that strikes by that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sublet.domain.plan import Phase
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.table import JobTable

__all__ = ["JobsAtWork"]


@dataclass(frozen=True, slots=True)
class JobsAtWork:
    """`sublet.runtime.providers.protocol.AtWork`, of all jobs at hand."""

    table: JobTable
    kernel: Callable[[], Kernel]

    def share(self) -> float:
        """Each job counts alike, however fast it is; of one that has ended nothing is left to do."""
        records = self.table.records.values()
        done = sum(record.share if record.ended_s is None else 1.0 for record in records)
        return done / len(records) if records else 0.0

    def nodes(self) -> Collection[str]:
        """On which jobs train."""
        kernel = self.kernel()
        training = (job_id for job_id, state in kernel.jobs.items() if state.phase is Phase.RUNNING)
        return {node_id for job_id in training for node_id, _ in kernel.tenancy.placement.get(job_id, ())}
