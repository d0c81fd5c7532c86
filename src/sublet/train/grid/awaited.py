"""A word to whoever waits for the other workers, and may wait for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["awaited"]

AFTER_S = 30.0


@contextmanager
def awaited(why: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Says so on stderr, once, if what is done here is not over by then; it goes on all the same."""
    timer = threading.Timer(after_s, _say, (why,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(why: str) -> None:
    print(f"sublet: {why}", file=sys.stderr, flush=True)  # noqa: T201 - to the user, in the user's process
