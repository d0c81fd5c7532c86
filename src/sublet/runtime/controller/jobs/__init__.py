"""The life of jobs: submitted, started, judged by what their workers say, held, ended."""

from __future__ import annotations

from sublet.runtime.controller.jobs.attempts import Attempts
from sublet.runtime.controller.jobs.factory import RecordFactory
from sublet.runtime.controller.jobs.feasibility import Feasibility
from sublet.runtime.controller.jobs.forms import told
from sublet.runtime.controller.jobs.groups import Groups
from sublet.runtime.controller.jobs.lifecycle import Lifecycle

__all__ = [
    "Attempts",
    "Feasibility",
    "Groups",
    "Lifecycle",
    "RecordFactory",
    "told",
]
