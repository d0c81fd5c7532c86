"""The inbox: the place where parts of a controller put news, and all that they see of each other.

A part that learns something says so here. The kernel hears it, it is written down with the orders that follow, and only
then are these carried out (pump.py); so no part calls another one to have something decided.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from sublet.domain.events import Event
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.watch import HistoryRow

__all__ = ["Inbox"]


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
