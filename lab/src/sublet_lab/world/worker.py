"""Workers with a session: they follow orders by the shipped code, over the shipped line, and train on a counter."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from sublet.errors import NoCheckpointLeft, SubletError
from sublet.train.link.agent_line import ORPHAN_GRACE_S, AgentLine, LineLost
from sublet.train.link.following import ORDER_S, Entry, Following
from sublet.wire.files import ANCHOR, DISK
from sublet.wire.messages import (
    EXIT_LOST,
    EXIT_MEMORY,
    Damaged,
    Finished,
    FromWorkerMessage,
    Joined,
    Ready,
    Regroup,
    Saved,
    SaveFailed,
    ShortOfMemory,
    StartWorker,
    Stepped,
)
from sublet_lab.world.awaiting import Task
from sublet_lab.world.machine import TrueWall
from sublet_lab.world.meetings import Meetings, TableGroup
from sublet_lab.world.shelf import Shelf
from sublet_lab.world.sockets import WorldSocket
from sublet_lab.world.truth import JobTruth

__all__ = ["Meetings", "SdkWorker"]

FIRST_SAVE_S = 15.0  # as saving.py has it
CUT_AGAIN_S = 0.1  # slower than in a real process, where it is for sockets that torch opens meanwhile
SHARE_S = 0.1  # mean, to hand a state over
MOST_READ = 1 << 16
OTHERS_EVERY_S = 2.0  # as report.py has it, of ranks above 0
AT_ONCE = 16  # samples, of a script that says nothing else


class SdkWorker:
    """One process of a job."""

    def __init__(
        self,
        meetings: Meetings,
        *,
        host: str,
        order: StartWorker,
        line: WorldSocket,
        exited: Callable[[int], None],
    ) -> None:
        self.meetings, self._world, self.host = meetings, meetings.world, host
        self.id, self.job_id = order.worker_id, order.job_id
        self.dead = self.hung = False
        self._socket, self._exited = line, exited
        self._task = Task(self._world)
        wall = TrueWall(self._world)
        self._line = AgentLine(line, self.id, wall=wall, news=_News(self._task))
        own = order.env["SUBLET_CHECKPOINT_DIR"] if order.env.get("SUBLET_CHECKPOINT_TIER") == DISK else ""
        shelf = Shelf(meetings.storage, self._truth, self.job_id, self.id, own)
        self.keeper = Keeper(self, shelf, self._task, self._truth, self._line if own else None)
        self._following = Following(
            self._line, self.keeper, TableGroup(self), self._new_group, wait_s=ORDER_S, wall=wall
        )
        self._turn_is_due = False  # of the line
        self._at_once = AT_ONCE  # samples
        self.trains = False  # in a group, and makes steps
        self._every_s = float({**order.defaults, **order.env}.get("SUBLET_CHECKPOINT_EVERY_S", "30"))
        self._told_s = self._world.now_s  # that it said how long its steps take
        self._saved_s: float | None = None
        self._saving: int | None = None  # the step that is being written
        self._greeting = Ready(worker_id=self.id)
        self._truth.started += 1
        line.on_ready = self._listen
        self._world.after(self._world.stream("workers").uniform(0.5, 2.0) * self._truth.boot_s, self._boot)

    @property
    def _truth(self) -> JobTruth:
        return self.meetings.truth.jobs[self.job_id]

    def complain(self, law: str, what: str) -> None:
        """A worker has seen a law broken."""
        self.meetings.truth.complaints.append((law, f"{self.job_id}: {what}"))

    # ------------------------------------------------------------------ its line

    def say(self, message: FromWorkerMessage) -> None:
        """To its agent."""
        if not self.dead and not self.hung:
            self._line.say(message)

    def _listen(self) -> None:
        """The thread of a real one."""
        while not self.dead and not self.hung:
            try:
                data = self._socket.recv(MOST_READ)
            except BlockingIOError:
                break
            if not self._line.hear(data):
                self._line.end()
                self._world.after(ORPHAN_GRACE_S, self.exit, EXIT_LOST)
                self._socket.on_ready = lambda: None
                break
        self._turn()

    def _turn(self, *, due: bool = False) -> None:
        self._turn_is_due = self._turn_is_due and not due
        if not self.dead and not self.hung and self._line.turn() < CUT_AGAIN_S and not self._turn_is_due:
            self._turn_is_due = True
            self._world.after(CUT_AGAIN_S, partial(self._turn, due=True))

    def _boot(self) -> None:
        if self.dead or self.hung:
            return
        if self._truth.fails > 0:
            self._truth.fails, self._truth.failed = self._truth.fails - 1, self._truth.failed + 1
            self.exit(1)
            return
        self.say(self._greeting)
        self._task.begin(self._following.follow(), self._came)

    # ------------------------------------------------------------------ its group

    def _new_group(self, order: Regroup) -> TableGroup:
        return TableGroup(self, self.meetings.table(self.job_id, order), order)

    def poke(self) -> None:
        """Look whether what it waits for has come."""
        if not self.dead and not self.hung:
            self._task.poke()

    def _came(self, outcome: Any) -> None:
        """Into a group, or to the end of all."""
        if isinstance(outcome, SystemExit):
            self.exit(int(str(outcome.code)))
        elif isinstance(outcome, LineLost):
            self.exit(EXIT_LOST)
        elif isinstance(outcome, Entry):
            self._settle_in(outcome)
        else:
            raise outcome

    def _settle_in(self, entry: Entry) -> None:
        group, truth = self._following.group, self._truth
        if group.rank == 0:
            truth.redone += max(0, truth.top - self.steps)
        self.say(
            Joined(
                worker_id=self.id,
                generation=group.generation,
                step=self.steps,
                done=float(self.steps),
                work=float(truth.steps),
                global_batch=1,
                source=entry.source,
                formed_s=entry.formed_s,
                state_s=entry.state_s,
            )
        )
        self._at_once = min(self._at_once, entry.micro_batch or self._at_once)
        self.trains = True
        group.table.train(group.rank)

    def broke(self, why: str) -> None:
        """Its group is gone under it while it trains."""
        self.trains = False
        if not self.dead and not self.hung:
            self._task.begin(self._following.recover(why), self._came)

    # ------------------------------------------------------------------ its training

    @property
    def steps(self) -> int:
        """Made so far."""
        return self.keeper.steps

    @property
    def ordered(self) -> bool:
        """There is an order that all should know of."""
        return self._line.pending and not self._line.gone

    def step_made(self, step: int, step_s: float, *, comm_s: float, ordered: bool) -> None:
        """A boundary: reports, checkpoints, orders."""
        self.keeper.steps = step
        if self._line.gone:
            self.exit(EXIT_LOST)
            return
        group = self._following.group
        if group.rank == 0 or self._world.now_s - self._told_s >= OTHERS_EVERY_S:
            self._told_s = self._world.now_s
            self._report(group.generation, step, step_s, comm_s)
        if group.rank == 0:
            self._save_if_due(step)
        if ordered:
            self.trains = False
            self._task.begin(self._following.change(), self._came)
        elif step >= self._truth.steps and group.rank == 0:
            self._world.after(self._truth.write_s, self._finish, group)

    def _report(self, generation: int, step: int, step_s: float, comm_s: float) -> None:
        self.say(
            Stepped(
                worker_id=self.id,
                generation=generation,
                step=step,
                done=float(step),
                epoch=0,
                loss=1.0,
                step_s=step_s,
                comm_s=comm_s,
                global_batch=1,
                local_batch=1,
            )
        )

    def _save_if_due(self, step: int) -> None:
        now_s = self._world.now_s
        if self._saved_s is None:
            self._saved_s = now_s - max(0.0, self._every_s - FIRST_SAVE_S)
        asked, self._line.save_now = self._line.save_now, False
        if self._saving is None and (asked or now_s - self._saved_s >= self._every_s):
            self._saving, self._saved_s = step, now_s
            self._world.after(self._truth.write_s, self._commit, step)

    def _commit(self, step: int) -> None:
        """The write behind the loop is over."""
        if not self.dead and not self.hung and self._saving == step:
            self._saving = None
            self.keeper.commit(step)

    def settle(self) -> None:
        """Wait for what is being written."""
        if self._saving is not None:
            self._commit(self._saving)

    def _finish(self, group: TableGroup) -> None:
        if self.dead or self.hung or self._following.group is not group or not group.stands:
            return
        self.settle()
        truth = self._truth
        self.keeper.commit(truth.steps)
        truth.done = True
        self.say(Finished(worker_id=self.id, step=truth.steps, done=float(truth.steps)))
        group.table.finish()

    def run_short(self, *, ends: bool) -> bool:
        """A step does not fit into memory: fewer samples at a time from now on. False if that is none."""
        group, tried = self._following.group, self._at_once
        if self.dead or self.hung or not group.stands or tried <= 1:
            return False
        self._at_once = tried // 2
        facts = {"generation": group.generation, "step": self.steps, "samples": tried, "micro_batch": self._at_once}
        self.say(ShortOfMemory(worker_id=self.id, ends=ends, **facts))
        if ends:
            self.exit(EXIT_MEMORY)
        elif group.world > 1:
            group.hang_up()
        return True

    # ------------------------------------------------------------------ its end

    def end_well(self) -> None:
        """All is done."""
        if not self.hung:
            self.exit(0)

    def signal(self, number: int) -> None:
        """SIGKILL ends it; a process that hangs hears no other."""
        if number == signal.SIGKILL or not self.hung:
            self.exit(-number)

    def exit(self, code: int) -> None:
        """By itself, or by a signal (minus its number)."""
        if not self.dead:
            self.vanish()
            self._socket.close()
            self._exited(code)

    def vanish(self) -> None:
        """With its machine, or alone. If that is off, the others of its group are told nothing."""
        if self.dead:
            return
        self.dead = True
        self._task.drop()
        if self._saving is not None:
            self.keeper.die_saving(self._saving)
        if self.meetings.network.passes(self.host, self.host):
            self._following.group.close()


class Keeper:
    """The state of training: a number of steps."""

    def __init__(self, worker: SdkWorker, shelf: Shelf, task: Task, truth: JobTruth, line: AgentLine | None) -> None:
        """`line`: to an agent that carries what is saved, and brings the newest."""
        self._worker, self._shelf, self._task, self._truth, self._line = worker, shelf, task, truth, line
        self._generation = 0
        self.steps = 0

    @property
    def done(self) -> float:
        """A step is a sample."""
        return float(self.steps)

    @property
    def ahead(self) -> int:
        """As many as there are steps."""
        return self.steps

    def open(self, generation: int | None) -> None:
        """This worker writes from now on."""
        assert generation is not None  # there is a controller
        self._generation = generation
        self._shelf.open(generation)

    async def load(self) -> bool:
        """The newest that is whole."""
        told = self._truth.told
        if self._line is not None:
            await self._line.bring(self._generation, ORDER_S)
        await self._task.sleep(self._truth.write_s / 2)
        step, skipped = self._shelf.newest()
        if skipped:
            paths, used = tuple(path for path, _ in skipped), -1 if step is None else step
            self._worker.say(Damaged(worker_id=self._worker.id, paths=paths, why=skipped[0][1], step=used))
            if step is None:
                raise NoCheckpointLeft("checkpoints", len(skipped), skipped[0][1])
        if (step or 0) < told:
            self._worker.complain("I4", f"checkpoint {told} was acknowledged, and {step} is the newest")
        self.steps = step or 0
        return step is not None

    async def share(self, group: TableGroup, holders: list[int]) -> None:
        """From the first holder to all that lack it."""
        if len(holders) < group.world:
            await self._task.sleep(SHARE_S)
            self.steps = (await group.numbers(self.steps))[holders[0]]

    async def save(self) -> None:
        """Now, and wait for it."""
        self._worker.settle()
        await self._task.sleep(self._truth.write_s)
        self.commit(self.steps)

    def close(self) -> None:
        """Wait for what is being written."""
        self._worker.settle()

    def commit(self, step: int) -> None:
        """By the shipped code; what comes of it is told."""
        try:
            self._shelf.save(step)
        except SubletError as error:
            self._worker.say(SaveFailed(worker_id=self._worker.id, step=step, why=str(error)))
            return
        self._worker.say(
            Saved(
                worker_id=self._worker.id,
                step=step,
                done=float(step),
                seconds=self._truth.write_s,
                blocked_s=0.01,
                size_bytes=1,
                tier=ANCHOR if self._line is None else DISK,
            )
        )

    def die_saving(self, step: int) -> None:
        """Somewhere within a write."""
        with contextlib.suppress(SubletError):
            self._shelf.die_saving(step)


class _News:
    """The line's way to let the loop wait: everything is in one thread."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.wait, self.notify = task.wait, task.poke

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
