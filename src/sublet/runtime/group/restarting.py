"""Scripts without the SDK: they know nothing of us, so that a group of another shape is stopped and started.

    launched -> member -> (leaving) -> gone

One that opens a session all the same is ended, and told as such: its job has an elastic group from then on.

Rank 0 starts first: its agent finds a port where the others meet it, and says so. Checkpoints of such a script are its
own affair; its agent sees its activity. One that saves with `train.checkpointed` tells how far it is, and can be asked
to save. All states are in `states`, what takes too long in `overdue`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import assert_never

from sublet.domain.shape import Placement
from sublet.runtime.group import states
from sublet.runtime.group.core import LAST_GRACE_S, GroupCore, Verdict, find_crash
from sublet.runtime.group.failures import Ended, Failure, Fault, back_off_s, fault_of, how_it_ended
from sublet.runtime.group.places import Form
from sublet.runtime.group.protocol import GroupNews, Outcome
from sublet.runtime.group.states import Idle, Opening, Over, RestartingState, Resting, Running, Starting, Stopping
from sublet.runtime.group.workers import Worker, WorkerPhase
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.files import Preparing


class RestartingGroup(GroupCore):
    """The workers of a job that are stopped and started."""

    def __init__(
        self,
        job_id: str,
        spec: JobSpec,
        *,
        log_of: Callable[[str], str],
        env: Callable[[], dict[str, str]],
        host_of: Callable[[str], str] = lambda _: "",
        era: int = 0,
    ) -> None:
        super().__init__(job_id, spec, log_of=log_of, env=env, host_of=host_of, era=era)
        self.state: RestartingState = Idle(0.0)

    @property
    def training(self) -> bool:
        """See the protocol."""
        return isinstance(self.state, Running) and not self.broken

    @property
    def working(self) -> int | None:
        """See the protocol."""
        return self.size or None if isinstance(self.state, Running) else None

    @property
    def idle(self) -> bool:
        """See the protocol."""
        return isinstance(self.state, Idle)

    # ------------------------------------------------------------------ orders of the kernel

    def move(self, generation: int, placement: Placement, batch: int, wall_s: float, form: Form | None = None) -> None:
        """All end, and the last to go starts the others; a job without a session cannot be cut."""
        del form
        if isinstance(self.state, Over):
            return  # the kernel is about to hear why
        self._take_order(generation, placement, batch)
        self._next_round()
        self.widths.begin_order()
        self.state = Starting(wall_s)
        self._roster.end_all(self.spec.grace_s, wall_s)
        self._proceed(wall_s)

    def stop(self, generation: int, *, resumable: bool, wall_s: float) -> None:
        """See the protocol."""
        if isinstance(self.state, Over):
            return
        self.generation = generation
        self._next_round()
        self.state = Stopping(wall_s, resumable)
        self._roster.end_all(self.spec.grace_s if resumable else min(self.spec.grace_s, LAST_GRACE_S), wall_s)
        self._proceed(wall_s)

    def save_now(self) -> None:
        """See the protocol: one that has told us where it began listens."""
        teller = None if self.joined is None else self.workers.get(self.joined.worker_id)
        if teller is not None and teller.phase is not WorkerPhase.LEAVING:
            self._roster.send(teller, wire.SaveNow(worker_id=teller.id))

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
        """See the protocol."""
        self._begin_adoption(generation, placement, batch, form, trains=trains)
        self.state = Running(wall_s) if trains else Idle(wall_s)

    def all_agents_came(self, wall_s: float) -> None:
        """See the protocol."""
        ends, self._ends_before = self._ends_before or [], None
        if not isinstance(self.state, Running) or self.size == self._wanted:
            return
        if not self.workers and ends and all(down.code == 0 for down in ends):
            self._finish(wall_s)
            return
        if self.spec.per_node and self.workers and all(down.code == 0 for down in ends):
            # One may work for all, and nodes with nothing to do are through: which ones were, before us, is unknown.
            self.state = replace(self.state, through=(self._wanted - self.size) // self._each)
            return
        self.broken = True
        if (crash := find_crash(ends)) is not None:
            self._fail(crash, wall_s)
            return
        self._tell(Outcome.RESTARTED, Failure(fault=Fault.INFRA, why="workers ended while the controller was away"))
        self.move(self.generation, self._placement, self._batch, wall_s)

    # ------------------------------------------------------------------ news of nodes and workers

    def agent_came(self, node_id: str, worker_ids: list[str], wall_s: float) -> None:
        """See the protocol; an unknown worker is of a round that is over, unless the controller is new too."""
        self._meet_agent(node_id, worker_ids, wall_s, wanted=self._ends_before is not None)
        if self.spec.per_node and isinstance(self.state, Starting):
            self._proceed(wall_s)

    def node_lost(self, node_id: str, wall_s: float) -> None:
        """See the protocol; the other workers end too, because they cannot go on without it."""
        ours = self._forget_node(node_id)
        if isinstance(self.state, Over):
            return
        if ours and not isinstance(self.state, Stopping):
            self.state = Idle(wall_s)
        else:
            self._proceed(wall_s)
        if self.broken:
            self._roster.end_all(0.0, wall_s)

    def evacuate(self, node_id: str, wall_s: float, others: Collection[str] = ()) -> None:
        """All end, and have their grace to save something; the kernel says where to go on when the node is lost."""
        if not self.training or not any(worker.node_id == node_id for worker in self._roster.members):
            return
        self._placement = tuple(part for part in self._placement if part[0] not in {node_id, *others})
        self.round = self.round.after()
        self.state = Idle(wall_s)
        self._roster.end_all(self.spec.grace_s, wall_s)

    def hear(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        """Reports of agents on a process, and the few words of one that has checkpoints and a loop of its own."""
        if self._is_end_before(message):
            return
        worker = self.workers.get(message.worker_id)
        if worker is None:
            return  # of a round long past
        match message:
            case wire.WorkerUp():
                self._hear_up(worker, message, wall_s)
            case Preparing():
                worker.note_preparing(wall_s)
            case wire.WorkerSeen():
                worker.note_seen(message, wall_s)
            case wire.WorkerDown():
                self._lose_worker(worker, message.code, message.error, wall_s)
            case wire.Joined():
                self.joined, self.step, self.stepped = message, message.step, None
                self.work, self.done = message.work or None, message.done if message.work else 0.0
            case wire.Stepped():
                self.step, self.stepped = message.step, message
                self.done = message.done if self.work else 0.0  # without `steps=` it says nothing of the work
            case wire.Ready() if not isinstance(self.state, Stopping | Over | Opening):
                # It was taken for one without a session, and waits for a group that is not formed here.
                self.round, self.state = self.round.after(), Opening(wall_s)
                self._roster.end_all(0.0, wall_s)
            case _:
                pass  # more of a session, which it is to open anew

    def _hear_up(self, worker: Worker, message: wire.WorkerUp, wall_s: float) -> None:
        """It runs. The meeting place of the first is known now, and the others may start."""
        if worker.phase is not WorkerPhase.LAUNCHED:
            return
        self._roster.enter(worker, WorkerPhase.READY, wall_s)
        if isinstance(self.state, Starting) and worker.rank == 0 and message.port:
            self.state = replace(self.state, address=(message.host, message.port))
            self._launch_missing(wall_s, address=self.state.address)
        self._run_if_ready(wall_s)

    # ------------------------------------------------------------------ starting and ending

    @property
    def _awaits_address(self) -> bool:
        """The meeting place is not known yet: the first worker is to start before the others."""
        starts = isinstance(self.state, Starting) and self.state.address is None
        return starts and self._wanted > 1 and not self.spec.per_node

    @property
    def _may_launch(self) -> bool:
        """Processes for whole nodes are told the addresses of all of them, once all their agents have come."""
        return not self.spec.per_node or all(self._host_of(node_id) for node_id, _ in self._placement)

    def _proceed(self, wall_s: float) -> None:
        """One that was to go has gone, or there was none: perhaps all waited for that."""
        state = self.state
        if isinstance(state, Starting):
            if not self.workers and self._may_launch:  # any of them that was met, or was through, is gone with the rest
                self.state = replace(state, address=None, through=0)
                self._launch_missing(wall_s, first=self._awaits_address)
            self._run_if_ready(wall_s)
        elif isinstance(state, Opening) and not self.workers:
            self.news.append(GroupNews(outcome=Outcome.SESSION, generation=self.generation))
        elif isinstance(state, Stopping) and not self.workers:
            self.broken, self._nodes = False, set()
            self.state = Idle(wall_s) if state.resumable else Over(wall_s)
            if state.resumable:
                self.news.append(GroupNews(outcome=Outcome.STOPPED, generation=self.generation))

    def _run_if_ready(self, wall_s: float) -> None:
        """All processes of the placement run, or are through already, and no old one holds a GPU."""
        ready, state = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER), self.state
        if not isinstance(state, Starting) or not ready or len(ready) < len(self.workers):
            return
        if (len(ready) + state.through) * self._each < self._wanted:
            return
        for worker in ready:
            self._roster.enter(worker, WorkerPhase.MEMBER, wall_s)
        self.broken = False
        self.state = Running(wall_s, through=state.through)
        self._answer_move()

    def _lose_worker(self, worker: Worker, code: int, error: str, wall_s: float) -> None:
        """Its process has ended."""
        self._see_off(worker)
        if isinstance(self.state, Stopping) or worker.phase is WorkerPhase.LEAVING:
            self._proceed(wall_s)
            return
        self.broken = self.broken or (worker.phase is WorkerPhase.MEMBER and code != 0)
        state = self.state
        if not isinstance(state, Starting | Running):
            return  # the kernel's next order finds it missing
        why = error if code > 0 and error else how_it_ended(worker.id, code)
        failure = Failure(fault=fault_of(code), why=why, code=code)
        if code == 0 and worker.rank == 0 and self._awaits_address:  # it ended before we had heard of its start
            self._fail(Failure(fault=Fault.INFRA, why=f"{worker.id} was not met by the others"), wall_s)
        elif code != 0 and failure.fault is Fault.INFRA:
            self._fail(failure, wall_s)
        else:
            if code == 0:
                self.state = replace(state, through=state.through + 1)
            else:
                self.state = replace(state, failed=state.failed or Ended(failure, wall_s))
            self._end_if_last(wall_s)

    def _end_if_last(self, wall_s: float) -> None:
        """One has ended by itself; if none is left to wait for, that is its end."""
        self._run_if_ready(wall_s)
        state = self.state
        if self._roster.staying or not isinstance(state, Starting | Running):
            return
        if state.failed is not None:
            self._fail(state.failed.failure, wall_s)
        else:
            self._finish(wall_s)

    def _finish(self, wall_s: float) -> None:
        self.state = Over(wall_s)
        self._roster.end_all(LAST_GRACE_S, wall_s)
        self.news.append(GroupNews(outcome=Outcome.FINISHED, generation=self.generation, exit_code=0))

    def _fail(self, failure: Failure, wall_s: float, *, hopeless: bool = False) -> None:
        """A hang or fault of one is one of all: all are started anew, or it is given up."""
        verdict = self._judge(failure, wall_s, script=not hopeless, hopeless=hopeless)
        self._roster.end_all(0.0, wall_s)
        if verdict is Verdict.GIVE_UP:
            self.state = Over(wall_s)
            self._tell(Outcome.FAILED, failure)
            return
        self.round = self.round.after()
        self.broken = True
        self.state = Resting(wall_s)

    # ------------------------------------------------------------------ time

    def tick(self, wall_s: float) -> None:
        """See the protocol."""
        self._expire_workers(wall_s)
        state = self.state
        match state:
            case Starting() | Running() if state.failed and wall_s - state.failed.at_s > states.JUDGE_S:
                self._fail(state.failed.failure, wall_s)
            case Starting():
                self._tick_starting(state, wall_s)
            case Running():
                self._tick_running(state, wall_s)
            case Resting():
                if wall_s - state.since_s >= back_off_s(self.failures.total()) and not self.workers:
                    self.state = Starting(wall_s)
                    self._proceed(wall_s)
            case Idle() | Stopping() | Over() | Opening():
                pass
            case _:
                assert_never(state)

    def _tick_starting(self, state: Starting, wall_s: float) -> None:
        late = states.late_starters(self._roster.in_phase(WorkerPhase.LAUNCHED), wall_s)
        if late:
            self._fail(states.late_start(late[0]), wall_s)
        elif wall_s - state.since_s > states.READY_S and not self.workers:
            self._fail(Failure(fault=Fault.INFRA, why="workers are missing"), wall_s)

    def _tick_running(self, state: Running, wall_s: float) -> None:
        if self.size + state.through * self._each < self._wanted and state.failed is None:
            self._fail(Failure(fault=Fault.INFRA, why="workers are missing"), wall_s)
        elif not self.broken and (hang := states.find_silence(self._roster.members, self.spec, wall_s)):
            self._fail(hang, wall_s)
        elif not self.broken and (copies := states.find_copies(self._roster.members, self.spec, wall_s)):
            self._fail(copies, wall_s, hopeless=True)
        elif not self.broken and wall_s - state.since_s > states.WORKS_S:
            self.widths.note_step(self._wanted)
