"""Waiting for what may never end: in a thread that is left behind once it is known that it will not.

Gloo can lose the news that a connection has ended: a message that it was about to answer when the answer failed is not
told of it, and waits on. Seen about once in a hundred kills. Nor can the forming of a group be interrupted where it
waits for a connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from math import inf
from queue import SimpleQueue
from typing import Any, TypeVar

from sublet.machine.wall import WALL, Wall

__all__ = ["SLICE_S", "STUCK_S", "Patience"]

SLICE_S = 0.1  # of waiting, between looks at whether it still makes sense
STUCK_S = 0.3  # from hanging up until what has not noticed never will; the others take milliseconds

SLICE = timedelta(seconds=SLICE_S)
Answer = TypeVar("Answer")


class Patience:
    """With the connections of one group; it has an end `STUCK_S` after they have."""

    def __init__(self, wall: Wall = WALL) -> None:
        self.stuck = False  # something will never end
        self._wall = wall
        self._ended_s: float | None = None
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] | None = None

    def end(self) -> None:
        """The connections are cut."""
        if self._ended_s is None:
            self._ended_s = self._wall.monotonic()

    def check(self) -> None:
        """RuntimeError if the connections were cut: what was done meanwhile may have ended by that alone."""
        if self._ended_s is not None:
            raise RuntimeError("the group is gone")

    def look(self) -> None:
        """RuntimeError if what is waited for would have ended by now."""
        if self._ended_s is not None and self._wall.monotonic() - self._ended_s > STUCK_S:
            self.stuck = True
            raise RuntimeError("the group is gone and does not notice")

    def begin(self, work: Callable[[], Answer]) -> Future[Answer]:
        """In a thread of its own, beside all else."""
        outcome: Future[Answer] = Future()
        threading.Thread(target=_do, args=(work, outcome), name="sublet-forming", daemon=True).start()
        return outcome

    def until(self, outcome: Future[Answer], limit_s: float = inf) -> Answer:
        """What it came to; RuntimeError where it has not come to anything within the limit."""
        ends_s = self._wall.monotonic() + limit_s
        while True:
            try:
                return outcome.result(min(SLICE_S, limit_s))
            except TimeoutError:
                if outcome.done():  # it is its own, or it came between the end of our patience and this look
                    return outcome.result()
                self.look()
                if self._wall.monotonic() >= ends_s:
                    self.stuck = True
                    raise RuntimeError("it takes too long") from None

    def until_summed(self, work: Any) -> None:
        """A collective of gloo, here and in slices, without a change of threads; a message is no such thing.

        Whoever waits for a message in slices closes all connections with the first that runs out.
        """
        while True:
            try:
                work.wait(SLICE)
                return
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
                if work.is_completed():  # between the end of our patience and this look: how, it says now
                    work.wait(SLICE)
                    return
                self.look()

    def run(self, work: Callable[[], Answer], limit_s: float = inf) -> Answer:
        """One after the other in one thread, for what is waited for often."""
        if self._work is None:
            self._work = SimpleQueue()
            threading.Thread(target=_do_all, args=(self._work,), name="sublet-waiting", daemon=True).start()
        outcome: Future[Answer] = Future()
        self._work.put((work, outcome))
        return self.until(outcome, limit_s)

    def close(self) -> None:
        """No more work: the thread ends, unless it is stuck."""
        if self._work is not None:
            self._work.put((_last, Future()))
            self._work = None


def _last() -> None:
    """No work: it ends the thread."""


def _do(work: Callable[[], Any], outcome: Future[Any]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        outcome.set_exception(error)


def _do_all(queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]]) -> None:
    while True:
        work, outcome = queue.get()
        if work is _last:
            return
        _do(work, outcome)
        del work, outcome  # what it came to may be large
