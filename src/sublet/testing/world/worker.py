"""Workers with a session: processes that follow orders as the SDK does, and train on a counter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sublet.runtime.agent.line_reader import LineReader
from sublet.testing.world.heap import World
from sublet.testing.world.network import Network
from sublet.testing.world.sockets import WorldSocket
from sublet.testing.world.truth import JobTruth, Truth
from sublet.wire import messages as wire
from sublet.wire.exits import EXIT_LEFT, EXIT_LOST
from sublet.wire.lines import to_line

__all__ = ["Meetings", "SdkWorker"]

REPORT_S = 1.0  # between two reports of a group
HANG_UP_S = 0.5  # at most, until a member notices that another is gone
LOST_S = 10.0  # without a line to its agent, before a worker gives up
MOST_READ = 1 << 16


class Meetings:
    """Where the workers of one world find each other: a group per job and generation."""

    def __init__(self, world: World, network: Network, truth: Truth) -> None:
        self.world, self.network, self.truth = world, network, truth
        self._groups: dict[tuple[str, int], Group] = {}

    def group(self, job_id: str, order: wire.Regroup) -> Group:
        """Of this generation."""
        key = (job_id, order.generation)
        if key not in self._groups:
            self._groups[key] = Group(self, job_id, order.generation, order.world)
        return self._groups[key]


class SdkWorker:
    """One process. Of orders the newest counts; a group that has lost a member is dropped."""

    def __init__(
        self,
        meetings: Meetings,
        *,
        host: str,
        order: wire.StartWorker,
        line: WorldSocket,
        exited: Callable[[int], None],
    ) -> None:
        self.meetings, self.host, self.id, self.job_id = meetings, host, order.worker_id, order.job_id
        self.dead = self.hung = False
        self.step, self.rank, self.carries = 0, -1, False
        self.every_s = float({**order.defaults, **order.env}.get("SUBLET_CHECKPOINT_EVERY_S", "30"))
        self.pending: wire.Regroup | wire.Leave | None = None
        self.group: Group | None = None
        self._line, self._reader, self._exited = line, LineReader(), exited
        self._order: wire.Regroup | None = None
        self._meet: wire.Meet | None = None
        self._followed, self._ready, self._came, self._save_now = -1, False, False, False
        self.truth.started += 1
        line.on_ready = self._listen
        world = meetings.world
        world.after(world.stream("workers").uniform(0.5, 2.0) * self.truth.boot_s, self._boot)

    @property
    def truth(self) -> JobTruth:
        """What its job really is."""
        return self.meetings.truth.jobs[self.job_id]

    # ------------------------------------------------------------------ its line

    def say(self, message: wire.FromWorkerMessage) -> None:
        """To its agent."""
        if not self.dead and not self.hung:
            with contextlib.suppress(OSError):
                self._line.send(to_line(message))

    def _listen(self) -> None:
        if self.dead or self.hung:
            return
        try:
            data = self._line.recv(MOST_READ)
        except BlockingIOError:
            return
        if not data:
            self.meetings.world.after(LOST_S, self.exit, EXIT_LOST)
            return
        for message in self._reader.feed(data):
            match message:
                case wire.Regroup() | wire.Leave():
                    self._take(message)
                case wire.Meet() if self._meet is None or message.generation > self._meet.generation:
                    self._meet = message
                    self.look()
                case wire.SaveNow() if self.group is not None:
                    self.group.save_soon()
                case _:
                    pass

    def _take(self, order: wire.Regroup | wire.Leave) -> None:
        newest = self.pending.generation if self.pending is not None else self._followed
        if order.generation > newest or (isinstance(order, wire.Leave) and order.generation == newest):
            self.pending = order
            if self.group is not None and (order.broken or not self.group.formed):
                self.group.fall_apart(f"{self.id} follows {order.generation}")
            self.look()

    # ------------------------------------------------------------------ its orders

    def _boot(self) -> None:
        if self.dead or self.hung:
            return
        if self.truth.fails > 0:
            self.truth.fails -= 1
            self.exit(1)
            return
        self._ready = True
        self.say(wire.Ready(worker_id=self.id))
        self.look()

    def look(self) -> None:
        """Follow the newest order, as soon as it is out of its group and knows where to meet the others."""
        if self.dead or self.hung or not self._ready or self.group is not None:
            return
        if self.pending is not None:
            order, self.pending = self.pending, None
            self._followed, self._came = order.generation, False
            if isinstance(order, wire.Leave):
                self._leave(order)
                return
            self._order, self.rank = order, order.rank
            if order.rank == 0 and order.world > 1:
                self.say(wire.Leading(worker_id=self.id, generation=order.generation, host=self.host, port=1))
            self._came = order.rank == 0
        elif self._order is None or self._came:
            return
        if not self._came and self._meet is not None and self._meet.generation == self._followed:
            self._came = True
        if self._came and self._order is not None:
            self.meetings.group(self.job_id, self._order).enter(self)

    def _leave(self, order: wire.Leave) -> None:
        saves = order.save and self.carries and (self.rank == 0 or order.broken)
        self.meetings.world.after(self.truth.write_s if saves else 0.05, self._left, order, saves)

    def _left(self, order: wire.Leave, saves: bool) -> None:  # noqa: FBT001 - a callback of the world
        if self.dead or self.hung:
            return
        if saves:
            self.truth.saved = max(self.truth.saved, self.step)
        self.say(wire.Left(worker_id=self.id, generation=order.generation, step=self.step, done=float(self.step)))
        self.exit(EXIT_LEFT)

    def broke(self, generation: int, why: str) -> None:
        """Its group is gone under it."""
        if self.dead or self.hung:
            return
        if self.pending is None:
            self.say(wire.Broke(worker_id=self.id, generation=generation, step=self.step, why=why))
        self.look()

    # ------------------------------------------------------------------ its end

    def signal(self, number: int) -> None:
        """SIGKILL ends it; a process that hangs in a collective hears no other."""
        if number == 9 or not self.hung:  # SIGKILL
            self.exit(-number)

    def exit(self, code: int) -> None:
        """By itself, or by a signal (minus its number)."""
        if not self.dead:
            self.vanish()
            self._line.close()
            self._exited(code)

    def vanish(self) -> None:
        """With its machine: nobody is told but the others of its group, in time."""
        self.dead = True
        if self.group is not None:
            self.group.fall_apart(f"{self.id} is gone")


class Group:
    """The members of one generation of a job."""

    def __init__(self, meetings: Meetings, job_id: str, generation: int, size: int) -> None:
        self._meetings, self._world, self.job_id, self.generation = meetings, meetings.world, job_id, generation
        self._size, self._members = size, list[SdkWorker]()
        self.formed = self._over = self._saving = False
        self._saved_s = 0.0

    @property
    def _truth(self) -> JobTruth:
        return self._meetings.truth.jobs[self.job_id]

    def enter(self, worker: SdkWorker) -> None:
        """A member comes."""
        if self._over or any(member.id == worker.id for member in self._members):
            self._world.after(0.05, worker.broke, self.generation, "the store is gone")
            return
        worker.group = self
        self._members.append(worker)
        if len(self._members) == self._size:
            self._world.after(0.05 + self._world.stream("workers").random() * 0.5, self._form)

    def _stalled(self) -> bool:
        """Somebody hangs, or packets between two of them do not pass: collectives wait."""
        hosts = sorted({member.host for member in self._members})
        passes = self._meetings.network.passes
        return any(member.hung for member in self._members) or any(
            not passes(here, there) for here in hosts for there in hosts if here != there
        )

    def _form(self) -> None:
        if self._over:
            return
        if self._stalled():
            self._world.after(REPORT_S, self._form)
            return
        self.formed, truth = True, self._truth
        step, source = max((member.step if member.carries else -1) for member in self._members), "peer"
        if step < 0:
            step, source = truth.saved, "checkpoint" if truth.saved else "fresh"
        redone = max(0, truth.top - step)
        truth.redone += redone
        for member in self._members:
            member.step, member.carries = step, True
            member.say(
                wire.Joined(
                    worker_id=member.id,
                    generation=self.generation,
                    step=step,
                    done=float(step),
                    work=float(truth.steps),
                    global_batch=1,
                    source=source,
                    redone_steps=redone,
                    formed_s=0.3,
                    state_s=0.1,
                )
            )
        self._saved_s = self._world.now_s
        self._world.after(REPORT_S, self._advance)

    def _advance(self) -> None:
        if self._over:
            return
        if self._stalled():
            self._world.after(REPORT_S, self._advance)
            return
        truth, step_s = self._truth, self._truth.step_s / self._size + 0.001
        self._meetings.truth.stepped(self.job_id, self.generation)
        step = min(truth.steps, self._members[0].step + max(1, round(REPORT_S / step_s)))
        for member in self._members:
            member.step = step
        truth.top = max(truth.top, step)
        leader = next(member for member in self._members if member.rank == 0)
        leader.say(
            wire.Stepped(
                worker_id=leader.id,
                generation=self.generation,
                step=step,
                done=float(step),
                epoch=0,
                loss=1.0,
                step_s=step_s,
                global_batch=1,
                local_batch=1,
            )
        )
        if step >= truth.steps:
            self._finish(leader)
        elif any(member.pending is not None for member in self._members):
            self._part()
        else:
            if not self._saving and self._world.now_s - self._saved_s >= leader.every_s:
                self._saving = True
                self._world.after(truth.write_s, self._commit, leader, step)
            self._world.after(REPORT_S, self._advance)

    def save_soon(self) -> None:
        """At the next step boundary."""
        self._saved_s = -1e9

    def _part(self) -> None:
        """At a step boundary that all know of."""
        self._over = True
        for member in self._members:
            member.group = None
        for member in self._members:
            member.look()

    def _commit(self, leader: SdkWorker, step: int) -> None:
        self._saving, self._saved_s = False, self._world.now_s
        if leader.dead or leader.hung:
            return
        truth = self._truth
        truth.saved = max(truth.saved, step)
        leader.say(
            wire.Saved(
                worker_id=leader.id, step=step, done=float(step), seconds=truth.write_s, blocked_s=0.01, size_bytes=1
            )
        )

    def _finish(self, leader: SdkWorker) -> None:
        self._over, truth = True, self._truth
        truth.saved, truth.done = truth.steps, True
        leader.say(wire.Finished(worker_id=leader.id, step=truth.steps, done=float(truth.steps)))
        for member in self._members:
            member.group = None
            self._world.after(0.2, member.exit, 0)

    def fall_apart(self, why: str) -> None:
        """A member is gone, or follows another order: the others notice in a moment."""
        if self._over:
            return
        self._over = True
        for member in self._members:
            member.group = None
        for member in self._members:
            if not member.dead:
                seconds = 0.02 + self._world.stream("workers").random() * HANG_UP_S
                self._world.after(seconds, member.broke, self.generation, why)
