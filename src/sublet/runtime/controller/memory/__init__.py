"""Memory of a controller, and what it leaves to the next one: records, snapshots, archives."""

from __future__ import annotations

from sublet.runtime.controller.memory.archive import EARLIER, Compaction, Shelving
from sublet.runtime.controller.memory.context import Context, Identity, NodeTable
from sublet.runtime.controller.memory.grid_learning import KINDS, GridLearning, kind_of
from sublet.runtime.controller.memory.records import ASKS, Awaited, JobRecord, Start, Suspicion, kernel_job, pools_for
from sublet.runtime.controller.memory.snapshots import Memory
from sublet.runtime.controller.memory.table import JobsAtWork, JobTable, StoredJobs, job_of, needs_secrets
from sublet.runtime.controller.memory.tiers import OUTWARD, Every, Losses, Pace, Tally, Tiers, intervals, losses_of

__all__ = [
    "ASKS",
    "EARLIER",
    "KINDS",
    "OUTWARD",
    "Awaited",
    "Compaction",
    "Context",
    "Every",
    "GridLearning",
    "Identity",
    "JobRecord",
    "JobTable",
    "JobsAtWork",
    "Losses",
    "Memory",
    "NodeTable",
    "Pace",
    "Shelving",
    "Start",
    "StoredJobs",
    "Suspicion",
    "Tally",
    "Tiers",
    "intervals",
    "job_of",
    "kernel_job",
    "kind_of",
    "losses_of",
    "needs_secrets",
    "pools_for",
]
