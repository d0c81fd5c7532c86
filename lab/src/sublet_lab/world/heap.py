"""Virtual time: one heap of what is due, and processes that can be killed, stopped and woken."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

FIRST_S = 1000.0  # of the world; no clock of anybody in it begins at zero
MOST_UPTIME_S = 1e5  # by which the monotonic clocks of two processes may differ
MOST_AT_ONCE = 5_000  # events at one instant: 72 in the first hundred seeds
MOST_EVENTS, MOST_A_SECOND = 100_000, 200.0  # of a life: 12,000 there, and 26 a second
TOLD = 12  # events before the last, to show what went round

Struck = Callable[[], None]  # told at each time that a fault has really had an effect


def nobody() -> None:
    """Is told."""


class Crash(BaseException):
    """The process is gone at this very statement."""


class Livelock(Exception):
    """Something happens again and again, and nothing comes of it."""


class World:
    """Everything that will happen, in order; what is due at once, in the order in which it was put there.

    Each purpose has an RNG of its own, so that a fault that is taken out does not move those of the others.
    """

    def __init__(self, seed: int | str) -> None:
        self.seed, self.now_s, self.steps = seed, FIRST_S, 0
        self.began_s = FIRST_S
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._pids = itertools.count(100)
        self._streams: dict[str, random.Random] = {}
        self._last: deque[str] = deque(maxlen=TOLD)

    @property
    def age_s(self) -> float:
        """Since the world began."""
        return self.now_s - self.began_s

    def stream(self, name: str) -> random.Random:
        """The RNG of one purpose."""
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self.seed}/{name}")  # noqa: S311 - no secret
        return self._streams[name]

    def new_pid(self) -> int:
        """A pid that is new for ever."""
        return next(self._pids)

    def at(self, when_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call it then; what should have been before now, at once."""
        heapq.heappush(self._heap, (max(when_s, self.now_s), next(self._count), call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """Call it so much later."""
        self.at(self.now_s + seconds, call, *args)

    def run(
        self,
        until_s: float,
        *,
        each: Callable[[], None] | None = None,
        stop: Callable[[], bool] | None = None,
        often: int = 1,
    ) -> None:
        """Let time pass; `each` is called after everything that happens, and all ends early when `stop` says so.

        It is asked when the number of events is a multiple of `often`.
        """
        heap, pop = self._heap, heapq.heappop
        instant_s, at_once, most = self.now_s, 0, self._most_events()
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call, args = pop(heap)
            call(*args)
            self.steps += 1
            at_once = at_once + 1 if self.now_s == instant_s else 1
            instant_s = self.now_s
            if at_once > MOST_AT_ONCE - TOLD or self.steps > most - TOLD:
                most = self._most_events()
                self._goes_round(call, at_once, most)
            if each is not None:
                each()
            if stop is not None and not self.steps % often and stop():
                return
        self.now_s = max(self.now_s, until_s)

    def _most_events(self) -> int:
        """By now."""
        return MOST_EVENTS + int(MOST_A_SECOND * self.age_s)

    def _goes_round(self, call: Callable[..., object], at_once: int, most: int) -> None:
        """The last events before too many are kept, and told."""
        whose = getattr(call, "__self__", None)
        name = f"{whose.name}: " if isinstance(whose, Process) else ""
        self._last.append(f"{self.age_s:.6f} {name}{getattr(call, '__qualname__', repr(call))}")
        how_many = f"{at_once} events at one instant" if at_once > MOST_AT_ONCE else ""
        if self.steps > most:
            how_many = f"{self.steps} events in {self.age_s:.0f} s"
        if how_many:
            raise Livelock(f"{how_many}; the last: {', '.join(self._last)}")


class Process:
    """Something on a machine that runs when it is woken. Its monotonic clock has a zero of its own."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world, self.name, self.host = world, name, host
        self.pid = world.new_pid()
        self.dead = False
        self.stopped_since_s = self.stopped_until_s = -math.inf
        self.zero_s = world.stream("zeros").uniform(0.0, MOST_UPTIME_S)
        self._wakes_s = math.inf
        self._at_end: list[Callable[[], None]] = []

    def step(self) -> float | None:
        """Do all that is due; the world's time at which to come again, None = when something wakes it."""
        raise NotImplementedError

    def monotonic(self) -> float:
        """Its own clock."""
        return self.world.now_s + self.zero_s

    def wake(self, when_s: float) -> None:
        """Let it run then, or earlier."""
        if when_s < self._wakes_s and not self.dead:
            self._wakes_s = when_s
            self.world.at(when_s, self._woken, when_s)

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so much later."""
        now_s = self.world.now_s
        self.stopped_since_s = self.stopped_since_s if now_s <= self.stopped_until_s else now_s
        self.stopped_until_s = max(self.stopped_until_s, now_s + seconds)

    def at_end(self, call: Callable[[], None]) -> None:
        """Called by the kernel of its machine when it is gone."""
        self._at_end.append(call)

    def kill(self) -> None:
        """SIGKILL: not one more statement of it is run."""
        if not self.dead:
            self.dead = True
            for call in self._at_end:
                call()

    def _woken(self, when_s: float) -> None:
        if self.dead or when_s != self._wakes_s:
            return
        self._wakes_s = math.inf
        if self.world.now_s < self.stopped_until_s:
            self.wake(self.stopped_until_s)
            return
        try:
            due_s = self.step()
        except Crash:
            return
        if due_s is not None:
            self.wake(max(due_s, self.world.now_s))
