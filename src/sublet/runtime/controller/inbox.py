"""The inbox: the place where parts of a controller put news, and all that they see of each other.

A part that learns something says so here. The kernel hears it, it is written down with the orders that follow, and only
then are these carried out (pump.py); so no part calls another one to have something decided.
"""

from __future__ import annotations

from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, Protocol

from sublet.domain.events import Event
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.watch import HistoryRow


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


class Inbox(Protocol):
    """The controller as its parts see it. `wake` is apart from `queue`: several events want one commit."""

    @property
    def kernel(self) -> Kernel:
        """To be read, never to be told. It is asked for each time, because recovery puts another one in its place."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing may be done any more: the store does not work, or is another controller's."""

    def now_s(self) -> float:
        """Cloud time; never before the kernel's own."""

    def tell(self, event: Event) -> None:
        """Something happened: the kernel hears of it now, or after what it is busy with."""

    def queue(self, event: Event) -> None:
        """As `tell`, for one that is heard together with others, at the next `wake`."""

    def wake(self) -> None:
        """Hear what was queued, and what groups have to say, once all that speak now have spoken."""

    def note(self, row: HistoryRow) -> None:
        """Something for the history alone."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do it beside everything else; a failure is logged."""
