"""A run that is only there to be measured (`sublet profile`): it has no end, and keeps nothing."""

from __future__ import annotations

import os

from sublet.train.state.state import Progress
from sublet.wire.messages import Saved
from sublet.wire.profile import PROFILED

__all__ = ["ENDLESS", "is_profiled", "nothing_to_save", "profile_every_s"]

ENDLESS = 10**9  # epochs: more than anybody waits for, and still a number


def is_profiled() -> bool:
    """Nobody wants what this run comes to."""
    return PROFILED in os.environ


def profile_every_s(usual_s: float) -> float:
    """Seconds between two profiles."""
    return float(os.environ.get(PROFILED, usual_s))


def nothing_to_save(worker_id: str, progress: Progress) -> Saved:
    """The answer to whoever wants a checkpoint before it goes on: nothing of this would be missed."""
    return Saved(
        worker_id=worker_id, step=progress.steps, done=float(progress.done), seconds=0.0, blocked_s=0.0, size_bytes=0
    )
