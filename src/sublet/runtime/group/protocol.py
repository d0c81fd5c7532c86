"""Orders of the controller to the workers of one job, and its answers.

A group is pure: no clock, no socket. Every verb takes the wall time and leaves what is to be sent in `outbox` and what
the kernel is to hear in `news`. Two machines keep this promise: `elastic` for scripts with the SDK, which regroup while
they run, and `restarting` for all others, which are stopped and started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sublet.domain.shape import Grid, Placement
from sublet.runtime.group.failures import Patience, WorkerCounts
from sublet.runtime.group.places import Form, Places
from sublet.runtime.group.workers import Census, Round, Worker
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire


class Outcome(StrEnum):
    """A result of a group for the kernel or the controller."""

    MOVED = "moved"  # trains in the shape of the last order
    STOPPED = "stopped"  # has left all its GPUs, saved
    FINISHED = "finished"
    FAILED = "failed"
    RESTARTED = "restarted"  # failed and was started again, under the same order
    SESSION = "session"  # was taken for a script without one, has opened one, and has left all its GPUs for that
    NARROWED = "narrowed"  # cannot train in the shape of the last order, and goes on with fewer workers


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNews:
    """One outcome, with the kernel's generation that it answers."""

    outcome: Outcome
    generation: int
    why: str = ""
    exit_code: int | None = None
    width: int = 0  # that it cannot train at
    back_to: int = 0  # the worker count that it goes on with instead
    silent_s: float = 0.0  # wall: it hung for so long before this was seen


class Group(Protocol):
    """The workers of one job: from the kernel's orders to messages, and from messages to the kernel's events."""

    spec: JobSpec
    generation: int  # of the kernel's last order
    round: Round  # of its last agreement on its members
    broken: bool  # a member is gone: no step can be made
    step: int  # as last reported, like the next four
    done: float
    work: float | None
    joined: wire.Joined | None
    stepped: wire.Stepped | None
    failures: Counter[str]  # by whose fault: user, infra
    patience: Patience  # with failures without blame
    before: Census  # its workers, as the last controller knew them
    widths: WorkerCounts  # that it has trained at
    places: Places  # of its grid
    barred: bool  # none of it is started: its command is unknown
    finished: bool  # its session has said that all is done; a script without one never does

    @property
    def workers(self) -> dict[str, Worker]:
        """All of which it knows, by id; those that are on their way out too."""

    @property
    def census(self) -> Census:
        """Its workers as this controller knows them, for the next one."""

    @property
    def outbox(self) -> list[tuple[str, wire.ToAgent]]:
        """Messages to agents, by node: the sender clears the list."""

    @property
    def news(self) -> list[GroupNews]:
        """News for the kernel: the receiver clears the list."""

    @property
    def training(self) -> bool:
        """It makes steps, or does what the script does after them."""

    @property
    def working(self) -> int | None:
        """Workers that make steps, where it may hold GPUs on which none does; None if that cannot be told."""

    @property
    def idle(self) -> bool:
        """It follows no order."""

    @property
    def size(self) -> int:
        """Workers in the group."""

    def move(self, generation: int, placement: Placement, batch: int, wall_s: float, form: Form | None = None) -> None:
        """Start or resize: be `placement`, by whatever way keeps most; if the job is cut, in the grid of this `form`.

        If the placement has more GPUs than the grid, those are spare: their workers wait.
        """

    def stop(self, generation: int, *, resumable: bool, wall_s: float) -> None:
        """Save and leave; a job that will not be resumed ends without saving."""

    def end_now(self, wall_s: float) -> None:
        """There is no time to save: what runs is ended."""

    def save_now(self) -> None:
        """Write a checkpoint beside the training, where the script can be asked to."""

    def adopt(
        self,
        generation: int,
        placement: Placement,
        batch: int,
        *,
        trains: bool,
        wall_s: float,
        form: Form | None = None,
    ) -> None:
        """A restarted controller: the job holds these GPUs and this batch (0 = none); agents will name live workers."""

    def all_agents_came(self, wall_s: float) -> None:
        """After adoption: a worker that has not come by now is gone; start what is missing."""

    def agent_came(self, node_id: str, worker_ids: list[str], wall_s: float) -> None:
        """An agent came (back) with these workers of ours."""

    def node_lost(self, node_id: str, wall_s: float) -> None:
        """The node is gone with all on it; if the kernel counted it as ours, it will say where to go on."""

    def evacuate(self, node_id: str, wall_s: float, others: Collection[str] = ()) -> None:
        """The node will be gone in a moment, and `others` with it: go on without, or save if no other is left."""

    def prepare(self, doomed: Collection[str], grid: Grid | None) -> None:
        """These nodes will be gone: get ready, while it trains, for what follows; `grid` if that is known already."""

    def node_released(self, node_id: str, wall_s: float) -> None:
        """The node was given back: its workers had left, or were to end."""

    def hear(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        """A worker said something, or its process came up or ended."""

    def tick(self, wall_s: float) -> None:
        """Time has passed: start again after a pause, give up waiting for what hangs."""
