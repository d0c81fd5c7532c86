"""Time that passes where a loop would wait: for controllers over a cloud in memory, whose seconds are mostly waits.

While a thread is at work (a policy thinks, a file is written) time passes as on the wall, so nothing is late because
the machine is slow: what a test computes takes next to no time. Nothing in such a test may wait for a process or for
a socket of another one.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time

from sublet.machine.wall import WALL

POLICY = "policy"  # the name of the planner's threads
TURN_S = 1e-5  # that a turn of a loop takes: what follows from something is later than it, as on the wall


class VirtualTime:
    """The clocks of the machine, and loops that live by them. `install` it for one test."""

    def __init__(self):
        self.passed_s = 0.0
        self._began = (time.monotonic(), time.time(), WALL.since_boot())

    def monotonic(self):
        return self._began[0] + self.passed_s

    def unix(self):
        return self._began[1] + self.passed_s

    def since_boot(self):
        boot, on_s = self._began[2]
        return boot, on_s + self.passed_s

    def install(self, monkeypatch):
        for name in ("monotonic", "unix", "since_boot"):
            ask = getattr(self, name)
            monkeypatch.setattr(type(WALL), name, lambda _, ask=ask: ask())
        monkeypatch.setattr(asyncio.events, "new_event_loop", lambda: _Loop(self))  # which asyncio.run asks


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock):
        self.clock, self.outside = clock, 0  # calls in threads that are not answered
        super().__init__(_Selector(self))

    def time(self):
        return self.clock.monotonic()

    def run_in_executor(self, executor, func, *args):
        future = super().run_in_executor(executor, func, *args)
        self.outside += 1
        future.add_done_callback(self._answered)
        return future

    def _answered(self, _):
        self.outside -= 1

    def waits_for_threads(self):
        return self.outside > 0 or any(thread.name == POLICY for thread in threading.enumerate())


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        self._loop.clock.passed_s += TURN_S
        really = timeout is None or self._loop.waits_for_threads()  # asked first: a thread speaks before it ends
        if found := super().select(0):
            return found
        if really:
            began_s = time.monotonic()
            found = super().select(timeout)
            self._loop.clock.passed_s += time.monotonic() - began_s
            return found
        self._loop.clock.passed_s += max(0.0, timeout)
        return []
