"""What jobs that are cut get ready while nodes of theirs are about to go: parts that will be needed elsewhere.

At the notice, so that no part goes with the only worker that has it; and when the kernel says what a job will go on as,
which is what a look ahead has chosen (`PrepareJob`).
"""

from __future__ import annotations

from sublet.domain.shape import Grid
from sublet.runtime.controller.router import Router
from sublet.runtime.controller.table import JobTable

__all__ = ["Preparing"]


class Preparing:
    """Of one controller."""

    def __init__(self, router: Router, table: JobTable) -> None:
        self._router, self._table = router, table

    def notice(self, node_id: str) -> None:
        """A node will be taken; nobody has said yet what its jobs will become."""
        for job_id, record in self._table.live.items():
            if any(worker.node_id == node_id for worker in record.group.workers.values()):
                self.expect(job_id, None)

    def expect(self, job_id: str, grid: Grid | None) -> None:
        """It trains on where it is, and then in this grid."""
        for record in self._table.at_hand([job_id]):
            record.group.prepare(self._router.doomed_s, grid)
            self._router.touch(record)
