"""Whether the optimizer's state of a group is in ranges: as the job file says, or as memory asks for it."""

from __future__ import annotations

from sublet.domain.shards import ranges_for
from sublet.domain.units import GIB
from sublet.runtime.jobs.bounds import Shards
from sublet.wire.grids import Ready

__all__ = ["Ranging"]

ROOM = 0.9  # of a device, for state: what is computed with it needs some too


class Ranging:
    """The ranges of one group.

    `auto` is decided by the first session that is ready, and stays: all members must be alike.
    """

    def __init__(self, asked: Shards) -> None:
        self.on = asked is Shards.ON
        self._asked, self._decided = asked, asked is not Shards.AUTO

    def hear(self, message: Ready, workers: int) -> None:
        """A session is ready, in a group of so many."""
        if self._decided:
            return
        self._decided = True
        room = message.device_bytes * ROOM
        whole = message.weight_bytes + message.moment_bytes
        cut = message.weight_bytes + message.moment_bytes / ranges_for(workers)
        self.on = message.ranges and cut < whole and cut <= room < whole

    def refuses(self, message: Ready) -> str:
        """Why this session cannot train at all, in words; "" = it can."""
        if self._asked is Shards.ON and not message.ranges:
            why = "its session cannot have its optimizer's state in ranges; next: train it without stages, or install "
            return why + "this sublet where the script runs"
        if 0 < message.device_bytes < message.weight_bytes:
            needs, has = message.weight_bytes / GIB, message.device_bytes / GIB
            return (
                f"weights and gradients alone take {needs:.1f} GiB, and its device has {has:.1f}, which no number of "
                "workers mends; next: cut the model into stages (parallel.stages), or ask for a larger accelerator"
            )
        return ""
