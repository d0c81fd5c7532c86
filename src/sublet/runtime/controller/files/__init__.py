"""Files that travel or are kept: working directories, checkpoints, output."""

from __future__ import annotations

from sublet.runtime.controller.files.buckets import CARRIED, BucketCopies, Claims, has_checkpoints
from sublet.runtime.controller.files.checkpoints import Anchor, Commit, Head, PulledJobs, Pulling
from sublet.runtime.controller.files.logs import JobLogs, LogPart
from sublet.runtime.controller.files.sync import FileSync

__all__ = [
    "CARRIED",
    "Anchor",
    "BucketCopies",
    "Claims",
    "Commit",
    "FileSync",
    "Head",
    "JobLogs",
    "LogPart",
    "PulledJobs",
    "Pulling",
    "has_checkpoints",
]
