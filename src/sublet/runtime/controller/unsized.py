"""What is expected of jobs that do not say how large they are, as they run; and what is learned when they finish.

Nothing is learned from a job that was cancelled or has failed, nor from one that ended while nobody looked.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict

from sublet.domain import events as news
from sublet.domain.plan import JobState
from sublet.perf.sizes import had_by
from sublet.runtime.controller.believed_sizes import SizeBeliefs
from sublet.runtime.controller.inbox import Inbox
from sublet.runtime.controller.lifecycle import Lifecycle
from sublet.runtime.controller.paces import PACES, Paces
from sublet.runtime.controller.records import JobRecord

__all__ = ["LearnedSizes"]

log = logging.getLogger("sublet.controller")
WORTH_TELLING = 0.1  # relative change of a size that is worth a new plan


class LearnedSizes:
    """Of all jobs that do not say."""

    def __init__(self, inbox: Inbox, *, jobs: Lifecycle, beliefs: SizeBeliefs, paces: Paces = PACES) -> None:
        self._inbox, self._jobs, self._beliefs, self._paces = inbox, jobs, beliefs, paces
        self._looked_wall: dict[str, float] = defaultdict(lambda: -math.inf)

    def tick(self, record: JobRecord, wall_s: float) -> None:
        """Let the kernel hear of another size, if what is expected has changed since it was told."""
        state = self._inbox.kernel.jobs.get(record.id)
        if not record.size_group or state is None or wall_s - self._looked_wall[record.id] < self._paces.learn_s:
            return
        self._looked_wall[record.id] = wall_s
        now_s = self._inbox.now_s()
        had = had_by(state, now_s)
        record.had_h = had.done
        self._beliefs.note(record.size_group, record.id, had.gpu_h)
        told_h, size_h = record.size_h, self._beliefs.size_h(record.size_group, record.spec.min_workers, had)
        if abs(size_h / told_h - 1.0) > WORTH_TELLING:
            record.size_h = size_h
            self._jobs.relearn(record)
            self._inbox.queue(news.ProgressReported(now_s, record.id, record.share))

    def finished(self, record: JobRecord, state: JobState | None) -> None:
        """It has come to its end."""
        self._looked_wall.pop(record.id, None)
        if record.size_group and state is not None:
            try:
                self._beliefs.keep(record.size_group, record.id, had_by(state, self._inbox.now_s()).done)
            except OSError:  # the next jobs are guessed at, and this one has finished all the same
                log.exception("what is learned of %s cannot be written", record.size_group)
