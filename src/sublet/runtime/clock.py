"""Cloud time: seconds since the controller's first start, which may run faster than the wall for a replayed market.

At a speed-up of 60 a wall second is a cloud minute for everything at once: the market, prices, notices and pauses. So
a demonstration of two minutes spends, and loses, what two hours would.
"""

from __future__ import annotations

from sublet.domain.quantity import at_least, positive
from sublet.machine.wall import WALL, Wall


class Clock:
    """`now_s()` never goes back, within a run (monotonic) and across restarts (`began_s` is where the last one was).

    `certain`: the time since the last sign of a controller was measured, not read from a wall clock that may be wrong.
    An order from before `doubted_s` may be longer ago than it seems, for such a clock was believed then.
    """

    def __init__(
        self,
        *,
        speedup: float = 1.0,
        began_s: float = 0.0,
        wall: Wall = WALL,
        certain: bool = True,
        doubted_s: float = 0.0,
    ) -> None:
        positive("speedup", speedup)
        at_least("began_s", began_s, 0.0)
        self.speedup, self._began_s = speedup, began_s
        self.wall, self.certain, self.doubted_s = wall, certain, doubted_s
        self._wall_began_s = wall.monotonic()

    def begin(self) -> None:
        """Start anew, before anything has happened: what it took to get ready is not part of the story."""
        self._wall_began_s = self.wall.monotonic()

    def set_back(self, now_s: float) -> None:
        """It is not as late as was believed; for a controller that has not told the time yet."""
        at_least("now_s", now_s, 0.0)
        self._began_s, self._wall_began_s = min(now_s, self.now_s()), self.wall.monotonic()

    def put_forward(self, by_s: float) -> None:
        """More time has passed than was believed."""
        at_least("by_s", by_s, 0.0)
        self._began_s += by_s

    def now_s(self) -> float:
        """Cloud seconds."""
        return self._began_s + (self.wall.monotonic() - self._wall_began_s) * self.speedup

    def wall_s(self, cloud_s: float) -> float:
        """How long `cloud_s` cloud seconds are on the wall."""
        return cloud_s / self.speedup
