"""The start of a controller: the machine that it runs on, its paces, and what its operator asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublet.domain.budget import Budget, Limit
from sublet.machine.files import FILES, Files
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import Wall
from sublet.runtime.agent.disk import DISK, Disk
from sublet.runtime.clock import Clock
from sublet.runtime.providers.pacing import Rates

DECIDE_LIMIT_S = 60.0  # wall: far beyond what any policy of ours takes for a thousand jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """Seconds are wall seconds."""

    silence_s: float = 25.0  # of a node whose job stands, before the others go on without it
    tick_s: float = 0.25  # between two looks at every job that lives
    save_s: float = 2.0  # between two looks at which facts of jobs have changed
    progress_s: float = 2.0  # between two reports of one job to the kernel
    straggles_s: float = 15.0  # that a worker keeps its group waiting, before it is told: a stutter is no straggler
    learn_s: float = 3.0  # between two changes of what the kernel believes of a job
    sweep_s: float = 5.0  # between two comparisons of what we hold with what the provider lists
    absences: int = 3  # listings in a row without a node, before it counts as gone: one proves nothing
    agent_comes_s: float = 60.0  # a node whose agent has not come by then is given back
    agents_come_back_s: float = 3.0  # after a restart; agents try again every few tenths of a second
    rent_tries: int = 5  # before a node that may exist is given back instead
    events_a_snapshot: int = 200  # a start then reads a fraction of a second's worth of events
    jobs_kept: int = 200  # that have ended and are at hand; those before them are on the shelf
    jobs_shelved: int = 100  # at a time: beyond those that are kept, before any of them goes
    events_a_file: int = 10_000  # cut from the log at a time: some megabytes, of which some hundred kilobytes are left
    history_kept: int = 50_000  # rows that people can ask for: weeks of a busy controller, 15 MB; the rest is archived


PACES = Paces()


def begin_thread(work: Callable[[], None]) -> None:
    """Do it beside everything else."""
    threading.Thread(target=work, name="policy", daemon=True).start()  # it must not hold up the end of us all


@dataclass(frozen=True, slots=True, kw_only=True)
class HostServices:
    """The state directory, the clock and what else of the machine a controller uses; tests and worlds replace some."""

    state_dir: Path
    clock: Clock
    rng: Rng = RNG
    disk: Disk = DISK
    files: Files = FILES
    aside: Callable[[Callable[[], None]], None] = begin_thread  # work beside the event loop
    paces: Paces = PACES

    @property
    def wall(self) -> Wall:
        """The wall clock."""
        return self.clock.wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Wishes of the operator of a controller."""

    budget: Budget
    limits: Mapping[str, Limit] = field(default_factory=dict)
    rates: Rates | None = None  # of calls of the provider
    decide_limit_s: float = DECIDE_LIMIT_S  # wall, for one answer of the policy
    settings: str = ""  # as text, for a reader that has the log alone
    elsewhere: bool = False  # its nodes may not see this machine's disk
