"""Log files that do not grow without bound: when one is full it becomes `NAME.1`, and a new one begins.

The file was opened by the parent of this process, as its standard error; so it is copied and emptied, not moved.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

from sublet.wire.lines import plain_text

LONGEST_TRACE = 4000  # characters: the end of it says most
MOST_BYTES = 8 << 20  # of a controller's log, and as many of the one before it


def keep_small(descriptor: int, most_bytes: int = MOST_BYTES) -> None:
    """If it is a file, and full: keep what is in it as NAME.1, and begin anew."""
    with contextlib.suppress(OSError):
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size <= most_bytes:
            return
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.stat().st_ino != seen.st_ino:  # it was moved away, or deleted
            return
        draft = path.with_name(f"{path.name}.1")
        draft.unlink(missing_ok=True)
        with (
            path.open("rb") as old,
            os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as kept,
        ):
            old.seek(-min(most_bytes, seen.st_size), os.SEEK_END)
            kept.write(old.read(most_bytes))
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)  # for one that was not opened for appending


class _Small(logging.StreamHandler):  # type: ignore[type-arg]  # a generic only to type checkers
    """To standard error, kept small."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        keep_small(sys.stderr.fileno())


class _OneLine(logging.Formatter):
    """Source, text and time of a message, on one short line; the end of a traceback follows."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the library's
        record.message = plain_text(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        return super().formatException(ei)[-LONGEST_TRACE:]


def log_to_stderr() -> None:
    """All that this process has to say about itself, from warnings up."""
    handler = _Small(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
