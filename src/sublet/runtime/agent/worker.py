"""One worker of an agent: what is kept of it, and the last words of its log.

All from outside, for any program in any language: the length of its log, the processor time of the process and of all
that descend from it, the files below SUBLET_CHECKPOINT_DIR, and the sockets of the machine at MASTER_PORT.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from sublet.machine.wall import WALL, Wall
from sublet.runtime.agent.dialing import LineReader
from sublet.runtime.agent.disk import DISK, Disk
from sublet.runtime.agent.processes import are_alone, met_at
from sublet.runtime.agent.reading import OwnFiles, Reading, Resuming
from sublet.wire.messages import EXIT_LOST, StartWorker, WorkerSeen, WorkerUp

LOOK_S = 5.0  # wall, between two looks
BUSY = 0.01  # of one core: below that are timers of a runtime that waits
LIFE = "SUBLET_CONTAINER"  # the variable of a file with the pid of the first process in a container
MOST_FILES = 5_000  # looked at below a checkpoint directory
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Looks:
    """Ways to look at a process and its files, and what was begun before the process was started."""

    reading: Reading | None = None
    own: Resuming | None = None  # of the files below its own directory
    newest: float | None = None  # `newest_below` before the start
    met_at: Callable[[int], bool] = met_at
    are_alone: Callable[[Iterable[int]], bool] = are_alone
    disk: Disk = DISK
    wall: Wall = WALL


NO_LOOKS = Looks()


class Watch:
    """One worker, from its start on."""

    def __init__(
        self, worker_id: str, pid: int, log: str, env: Mapping[str, str], now_s: float, looks: Looks = NO_LOOKS
    ) -> None:
        self._worker_id, self._pid, self._log = worker_id, pid, log
        self._reading, self._own = looks.reading, looks.own
        self._met_at, self._are_alone, self._disk, self._wall = looks.met_at, looks.are_alone, looks.disk, looks.wall
        self._folder, self._port = env.get("SUBLET_CHECKPOINT_DIR", ""), env.get("MASTER_PORT", "")
        self._newest = looks.newest  # of the files, by the clock of their disk
        self._saved_s: float | None = None  # by ours
        self._active_s = self._looked_s = now_s
        self._ticks, self._printed = 0, self._length()
        self._met = False
        self._life = env.get(LIFE, "")  # of a container, whose processes do not descend from ours

    def look(self, now_s: float, everybody: Mapping[int, list[tuple[int, int]]]) -> WorkerSeen:
        """The facts to see; `everybody` is what runs on this machine (`ticks_by_parent`)."""
        family = _family((self._pid, *self._inside()), everybody)
        ticks, printed = sum(family.values()), self._length()
        allowed = BUSY * (now_s - self._looked_s) * TICKS_PER_S
        if abs(ticks - self._ticks) > allowed or printed != self._printed:  # less: a child took its time with it
            self._active_s = now_s
        self._ticks, self._printed = ticks, printed
        self._met = self._met or (self._port.isdigit() and self._met_at(int(self._port)))
        alone = self._port.isdigit() and not self._met and self._are_alone(family)
        return self._seen(now_s, quiet_s=now_s - self._active_s, alone=alone)

    def last_look(self) -> WorkerSeen:
        """It has ended: what it saved on SIGTERM, say, and the sockets that it leaves behind for a while."""
        self._met = self._met or (self._port.isdigit() and self._met_at(int(self._port)))
        seen = self._seen(self._wall.monotonic(), last=True)
        if self._reading is not None:
            self._reading.let_go()
        return seen

    def _seen(self, now_s: float, quiet_s: float = 0.0, *, last: bool = False, alone: bool = False) -> WorkerSeen:
        saved_ago_s = self._saved_ago_s(now_s)
        self._looked_s = now_s
        loaded = "" if self._reading is None else self._reading.look(settled=saved_ago_s is not None)
        own = OwnFiles() if self._own is None else self._own.look(now_s, last=last)
        saves = [ago_s for ago_s in (saved_ago_s, own.saved_ago_s) if ago_s is not None]
        return WorkerSeen(
            worker_id=self._worker_id,
            quiet_s=quiet_s,
            saved_ago_s=min(saves, default=None),
            met=self._met,
            loaded=loaded if own.loaded_ago_s is None else "yes",
            looked=own.looked,
            wrote_ago_s=own.wrote_ago_s,
            loaded_ago_s=own.loaded_ago_s,
            alone=alone,
        )

    def _saved_ago_s(self, now_s: float) -> float | None:
        """Since the last write below its checkpoint directory; None if there was none in its life.

        Files have the times of their disk's machine, which may have another clock. They are compared with each other,
        and ours only tells when within the time since the last look it was.
        """
        newest = newest_below(self._folder, self._disk) if self._folder else None
        if newest is not None and (self._newest is None or newest > self._newest):
            ago_s = max(0.0, self._wall.unix() - newest)
            self._newest, self._saved_s = newest, now_s - min(ago_s, now_s - self._looked_s)
        return None if self._saved_s is None else now_s - self._saved_s

    def _inside(self) -> Iterable[int]:
        try:
            text = self._disk.tail(self._life, since_bytes=0, most_bytes=20) if self._life else b""
        except OSError:
            return ()
        return (int(text),) if text.strip().isdigit() else ()

    def _length(self) -> int:
        try:
            return self._disk.facts(self._log).size_bytes if self._log else 0
        except OSError:
            return 0


def newest_below(folder: str, disk: Disk = DISK) -> float | None:
    """When a file below this directory was last written, in seconds since 1970; None without any."""
    newest = None
    for path in islice(disk.below(folder), MOST_FILES):
        try:
            written = disk.facts(path).written_ns / 1e9
        except OSError:
            continue  # it was replaced while we looked
        newest = written if newest is None else max(newest, written)
    return newest


def _family(pids: Iterable[int], everybody: Mapping[int, Iterable[tuple[int, int]]]) -> dict[int, int]:
    """These processes and their descendants, with the ticks of each; those of ended children are in their parents'."""
    found, below = dict[int, int](), list(pids)
    known = {child: ticks for children in everybody.values() for child, ticks in children}
    while below:
        one = below.pop()
        found[one] = known.get(one, 0)
        below += [child for child, _ in everybody.get(one, ()) if child not in found]
    return found


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
