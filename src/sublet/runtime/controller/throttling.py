"""What becomes of it when a cloud lets us make fewer calls than we want: a count, and a line that people can read."""

from __future__ import annotations

from sublet.runtime.controller.alarms import AlarmKind, Alarms
from sublet.runtime.controller.gauges import CallOutcome, Gauges

__all__ = ["Throttling"]

WORTH_TELLING_S = 5.0  # that the last in the row waits


class Throttling:
    """The `Ear` of a paced provider."""

    def __init__(self, gauges: Gauges, alarms: Alarms) -> None:
        self._gauges, self._alarms = gauges, alarms

    def throttled(self, call: str) -> None:
        """The cloud has said "too many"."""
        self._gauges.count_call(call, CallOutcome.THROTTLED)

    def waits(self, call: str, waiting: int, last_s: float) -> None:
        """Told where it is worth it, and then about once a minute."""
        if last_s >= WORTH_TELLING_S:
            text = f"the cloud lets us {call} no quicker: {waiting} wait, the last for about {last_s:.0f} s"
            self._alarms.sound(AlarmKind.THROTTLED, text, reason=call)
