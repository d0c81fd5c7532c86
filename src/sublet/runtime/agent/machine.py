"""The seams of an agent to its machine. It asks for nothing else, so another machine may be put there."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sublet.machine.files import FILES, Files
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.runtime.agent.acting import Acting, as_we_are
from sublet.runtime.agent.dialing import Dialer, Secure, dial, in_the_clear
from sublet.runtime.agent.disk import DISK, Disk
from sublet.runtime.agent.forking import Forked
from sublet.runtime.agent.host import PLACE, Place
from sublet.runtime.agent.nvml import GpuReading, gpu_readings
from sublet.runtime.agent.own_log import Log, log
from sublet.runtime.agent.worker import AgentWorker
from sublet.wire.messages import StartWorker

__all__ = ["Machine", "Processes"]


class Processes(Protocol):
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
    processes: Processes = field(default_factory=Forked)
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
