"""One worker of an agent: what is kept of it, and the last words of its log."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from sublet.runtime.agent.disk import Disk
from sublet.runtime.agent.line_reader import LineReader
from sublet.runtime.agent.watching import Watch
from sublet.wire.exits import EXIT_LOST
from sublet.wire.messages import StartWorker, WorkerUp

__all__ = ["CANNOT_START", "AgentWorker", "why_not_started"]

CANNOT_START = 127  # as a shell says of a command that is not there
SHORT_OF = frozenset(  # what a machine may lack, or its disks: on another, or later, the same command starts
    {
        errno.EAGAIN,
        errno.ENOMEM,
        errno.ENFILE,
        errno.EMFILE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EROFS,
    }
)
LAST_LINES = 20
MOST_SAID = 4096  # the longest path
LAST_BYTES = 8192  # looked at for the last lines, however long they are


def why_not_started(error: OSError | ValueError) -> int:
    """The exit code that stands for it: the script's own fault, or none, which is tried again for longer."""
    short = isinstance(error, OSError) and error.errno in SHORT_OF
    return EXIT_LOST if short else CANNOT_START


class AgentWorker:
    """A process, and the agent's end of its control line."""

    def __init__(self, order: StartWorker, pid: int, line: socket.socket, log_from: int) -> None:
        self.worker_id, self.job_id = order.worker_id, order.job_id
        self.pid = pid
        self.line: socket.socket | None = line  # None = closed by the worker
        self.reader = LineReader()
        self.unsent = bytearray()
        self.complaints = 0
        self.kill_at_s: float | None = None  # when its grace is over
        self.up: WorkerUp | None = None  # what was told of its start
        self.watch: Watch | None = None  # for one without a session
        self._log, self._log_from = order.log, log_from

    def close(self) -> None:
        """Our end of the line."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def said(self) -> str:
        """Its lines as words; of a process that speaks no messages."""
        if self.line is None:
            return ""
        with suppress(OSError):
            return self.line.recv(MOST_SAID).decode(errors="replace")
        return ""

    def last_words(self, disk: Disk) -> str:
        """The last lines that it printed."""
        if not self._log:
            return ""
        try:
            data = disk.tail(self._log, since_bytes=self._log_from, most_bytes=LAST_BYTES)
        except OSError as error:
            return f"its log cannot be read: {error}"
        lines = data.decode(errors="replace").splitlines()
        cut = len(data) == LAST_BYTES and len(lines) > 1  # in its first line: half a secret would not be hidden
        return "\n".join(lines[cut:][-LAST_LINES:])
