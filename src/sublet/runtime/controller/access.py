"""Whether the right to use a cloud ends soon: said once, while somebody can still do something about it."""

from __future__ import annotations

from collections.abc import Callable

from sublet.runtime.controller.alarms import AlarmKind, Alarms

__all__ = ["Access"]

A_DAY_S = 86_400.0
SOON_S = A_DAY_S + 3600.0  # wall: people hear of it a day before at the latest
HINT = "log in again, or let it have credentials that renew themselves; without them nothing is rented or given back"


class Access:
    """`left_s` asks the provider: wall seconds until its credentials end; None = they do not, or nobody knows."""

    def __init__(self, left_s: Callable[[], float | None], alarms: Alarms) -> None:
        self._left_s, self._alarms = left_s, alarms
        self._told = False

    def look(self) -> None:
        """Now and then. Credentials that were renewed are news when they end in turn."""
        left_s = self._left_s()
        ends_soon = left_s is not None and left_s <= SOON_S
        if left_s is not None and ends_soon and not self._told:
            when = f"end in {left_s / 3600.0:.1f} h" if left_s > 0.0 else "have ended"
            self._alarms.sound(AlarmKind.ACCESS, f"the credentials of the cloud {when}: {HINT}")
        self._told = ends_soon
