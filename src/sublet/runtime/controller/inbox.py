"""What the parts of a controller get of it: a place to put news, and nothing else of each other.

A part that learns something says so here. The controller lets the kernel hear it, writes it down with the orders that
follow, and only then carries them out; so no part calls another one to have something done.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sublet.domain.actions import Action
from sublet.domain.events import Event
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.history import HistoryRow

__all__ = ["Inbox", "Restart"]


class Inbox(Protocol):
    """The controller as its parts see it."""

    @property
    def kernel(self) -> Kernel:
        """To be read, never to be told. It is asked for each time, because recovery puts another one in its place."""

    def now_s(self) -> float:
        """Cloud time; never before the kernel's own."""

    def tell(self, event: Event) -> None:
        """Something happened: the kernel hears of it now, or after what it is busy with."""

    def queue(self, event: Event) -> None:
        """As `tell`, for one that is heard together with others, at the next `wake`."""

    def wake(self) -> None:
        """Hear what was queued, and what groups have to say, once everybody who speaks now has spoken."""

    def note(self, row: HistoryRow) -> None:
        """Something for the history alone."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do it beside everything else; a failure is logged."""


class Restart(Inbox, Protocol):
    """What recovery, which is in charge until it is through, may do beyond that."""

    def hold_orders(self, *, held: bool) -> None:
        """Orders to jobs are not carried out while it is not known who still runs."""

    def stop_listening(self) -> None:
        """The kernel hears nothing until `hear_first`."""

    def hear_first(self, sort: Callable[[list[Event]], list[Event]]) -> None:
        """Listen again, to what was told meanwhile in another order."""

    def carry_out(self, action: Action) -> None:
        """An order that an earlier controller gave and perhaps did not carry out."""

    def carry_on(self) -> None:
        """Let groups say what they have to say, now."""
