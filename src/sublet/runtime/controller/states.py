"""The states of a job that the kernel does not know: why it is held back, and how it ended. Values are as stored."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Ending", "Hold"]


class Hold(StrEnum):
    """Why a job may not run now; the empty one is false, and lets it."""

    NONE = ""
    OWNER = "user"
    BUDGET = "budget"  # its own is spent
    CANCEL = "cancel"  # it saves, and is cancelled then
    GIVEN_UP = "preemption"  # its nodes went too often: it saves, and has failed then
    BACK_OFF = "back-off"  # its nodes end within seconds of its start: it waits before the next
    DAMAGED = "damaged"  # all its checkpoints are: its owner decides
    COPY = "copy"  # its checkpoints come from a bucket
    SECRETS = "secrets"  # they are not here, as after a restore of a backup, which has none: its owner gives them again
    RULES = "rules"  # its specification, as the store has it, cannot be run by this version


class Ending(StrEnum):
    """How a job ended; the empty one is false: it has not."""

    NONE = ""
    FINISHED = "finished"
    FAILED = "failed"  # it may be resumed, unless its owner has closed it
    CANCELLED = "cancelled"

    @property
    def for_good(self) -> bool:
        """It never runs again."""
        return self in (Ending.FINISHED, Ending.CANCELLED)
