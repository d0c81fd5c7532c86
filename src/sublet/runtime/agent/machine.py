"""The seams of an agent to its machine. It asks for nothing else, so another machine may be put there."""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sublet.machine.files import FILES, Files
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.runtime.agent.devices import GpuReading, gpu_readings
from sublet.runtime.agent.dialing import Dialer, Secure, dial, in_the_clear
from sublet.runtime.agent.disk import DISK, Disk
from sublet.runtime.agent.forking import Forked
from sublet.runtime.agent.host import PLACE, Place
from sublet.runtime.agent.users import Acting, as_we_are
from sublet.runtime.agent.worker import AgentWorker
from sublet.runtime.logfile import keep_small
from sublet.wire.lines import plain_text
from sublet.wire.messages import StartWorker

MOST_LOG = 1 << 20  # bytes of the agent's own log, and as many of the one before it
Log = Callable[[str], None]


def log(text: str) -> None:
    """A line in the agent's own log, which does not grow without bound."""
    now = datetime.fromtimestamp(WALL.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"{now} {plain_text(text)}", file=sys.stderr, flush=True)  # noqa: T201 - standard error is the agent's log
    keep_small(sys.stderr.fileno(), MOST_LOG)


class _Processes(Protocol):
    """Programs that an agent starts and ends."""

    def start(self, order: StartWorker, own_env: Mapping[str, str]) -> AgentWorker:
        """A program that runs, and the agent's end of its control line; OSError where that cannot be."""

    def end(self, pid: int, number: int) -> None:
        """SIGTERM to it alone, which may have to tidy up its own; SIGKILL to its whole group. It may be gone."""

    def ended(self) -> Iterator[tuple[int, int]]:
        """(pid, exit code, or less than 0 for a signal) of those that have; nothing of their groups is left."""

    def ticks(self) -> Mapping[int, list[tuple[int, int]]]:
        """Parent -> (child, clock ticks that it and its children that have ended spent), of all that run here."""

    def met_at(self, port: int) -> bool:
        """Whether one of them listens on this TCP port, or is connected to it or from it."""

    def are_alone(self, pids: Iterable[int]) -> bool:
        """Whether torch is loaded in one of these, and none has a TCP socket at which another could meet it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of this process, unless told otherwise."""

    selector: selectors.BaseSelector
    pid: int = field(default_factory=os.getpid)
    dial: Dialer = dial
    secure: Secure = in_the_clear
    processes: _Processes = field(default_factory=Forked)
    warm: Callable[[], bool] = lambda: True  # `processes` can start workers without anybody's waiting
    home: Callable[[str, str, Sequence[str]], Path] = lambda *_: Path.home()  # where ~ is for a job that works in a
    # folder, and nothing of the machine's is at the paths that are mounted
    give: Callable[[str, str], None] = lambda *_: None  # a folder of ours to a job: it is to read and write there
    acting: Acting = as_we_are  # within it, as the job whose folder it is: no link there leads further than it may go
    gauge: Callable[[Sequence[str]], Mapping[str, GpuReading]] | None = gpu_readings  # None = GPUs tell nothing
    place: Place = PLACE
    disk: Disk = DISK
    files: Files = FILES
    wall: Wall = WALL
    rng: Rng = RNG
    log: Log = log
