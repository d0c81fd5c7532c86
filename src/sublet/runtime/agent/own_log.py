"""Messages of an agent about itself: lines on standard error, which is its log, kept small."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime

from sublet.machine.wall import WALL
from sublet.runtime.logfile import keep_small
from sublet.wire.text import plain_text

__all__ = ["Log", "log"]

MOST_LOG = 1 << 20  # bytes of the agent's own log, and as many of the one before it

Log = Callable[[str], None]


def log(text: str) -> None:
    """A line in the agent's own log, which does not grow without bound."""
    now = datetime.fromtimestamp(WALL.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"{now} {plain_text(text)}", file=sys.stderr, flush=True)  # noqa: T201 - standard error is the agent's log
    keep_small(sys.stderr.fileno(), MOST_LOG)
