"""The workers of one job: from the kernel's orders to messages, and from messages to the kernel's events.

Pure: no clock, no socket. Every verb takes the wall time and leaves what is to be sent in `outbox` and what the kernel
is to hear in `news`. A *round* is one agreement on who belongs to the group; it goes out as the `generation` of a
message and counts within the kernel's generation, so that a restart of workers under one order is a new round.

    launched -> ready -> member -> (leaving) -> gone

A planned change lets the old group train on until the newcomers are ready; a broken one cannot train, so it waits.
Every state but IDLE and OVER has a time after which `tick` does something about it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.shape import Placement
from sublet.runtime.group.failures import LEFT_ON_ORDER, Fault, fault_of, how_it_ended, how_it_stopped_short
from sublet.runtime.group.launch import start_order
from sublet.runtime.group.protocol import GroupNews, Outcome
from sublet.runtime.group.rounds import Round
from sublet.runtime.group.widths import Widths, narrowed
from sublet.runtime.group.workers import Worker, WorkerPhase, regroups, silence, split
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import ToAgent

__all__ = ["ElasticGroup"]

SILENT_S = 60.0  # wall: a group that makes no step, in no script of its own, for so long and for STEPS steps, hangs
FIRST_STEP_S = 300.0  # wall: the same for the first step in a process, which may compile
STEPS = 5.0
FORM_S = 30.0  # wall, from the order to the first joined member, before silence counts as failure
READY_S = 600.0  # wall, from the start of a worker to its session: imports, downloads, data
APART_S = 2.0  # wall, from a member's cry that the group fell apart until we regroup though nobody is missing
JUDGE_S = 2.0  # wall: one that fails may do so because another is gone, of which we have not heard yet
QUIT_S = 10.0  # wall, from one worker's good end to the others', or it has ended too early
LEAVE_S = 60.0  # wall, for a worker to go when told; then it is killed
PARK_S = 60.0  # wall: survivors that nobody has a place for save and leave; they would not wait for ever
ADOPTED_S = 5.0  # wall, without a step after the controller came back, until all meet anew
TAIL_S = 600.0  # wall, for what a script does after its training
FORGIVEN_S = 600.0  # wall: training for so long makes up for failures that were nobody's fault
WORKS_S = 60.0  # wall: a script without the SDK that runs for so long at a width can train at it
BACK_OFF_S = 0.5  # before the first retry, doubled at each further one
LONGEST_BACK_OFF_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A worker that ended by itself, and is not judged yet."""

    fault: Fault
    why: str
    code: int
    at_s: float  # wall


class _State(StrEnum):
    IDLE = "idle"  # no order, or the last one is void since a node was lost: the kernel will give another
    GATHERING = "gathering"  # newcomers are on their way; members train on, unless broken
    FORMING = "forming"  # Regroup is out
    TRAINING = "training"
    RESTING = "resting"  # failed; starts again after a pause
    STOPPING = "stopping"
    ENDING = "ending"  # all steps are made; the script does what it does after them
    OVER = "over"


class ElasticGroup:
    """See the module. `log_of(worker_id)` names the file for its output, `env()` adds to its environment."""

    def __init__(
        self,
        job_id: str,
        spec: JobSpec,
        *,
        log_of: Callable[[str], str],
        env: Callable[[], dict[str, str]],
        life: int = 0,  # controllers before this one
    ) -> None:
        self.job_id, self.spec = job_id, spec
        self.outbox: list[tuple[str, ToAgent]] = []
        self.news: list[GroupNews] = []
        self.workers: dict[str, Worker] = {}
        self.generation = 0  # of the kernel's last order
        self.round = Round()
        self.broken = False  # a member is gone: nobody can make a step
        self.step, self.done = 0, 0.0  # as last reported
        self.work: float | None = None
        self.joined: wire.Joined | None = None
        self.stepped: wire.Stepped | None = None
        self.failures = Counter[str]()  # by whose fault: user, infra
        self._state = _State.IDLE
        self._placement: Placement = ()
        self._nodes: set[str] = set()  # that the kernel counts as ours: of the last order, and until it is answered
        self._batch, self._life = 0, life
        self._log_of, self._env = log_of, env
        self._meeting: tuple[Round, tuple[str, int]] | None = None  # (round, where a script without the SDK meets)
        self._started = 0  # workers launched
        self._since_s = 0.0  # wall, in this state
        self._stepped_s = 0.0  # wall, of the last sign of progress
        self._apart_s: float | None = None  # wall, of the first cry that this round fell apart
        self._cry = ""  # what it said
        self._widths = Widths()
        self._in_a_row = 0  # infra failures without long enough training between them
        self._failed_s = 0.0  # wall, of the last
        self._unformed = 0  # rounds in a row that did not form
        self._suspect: _Ended | None = None  # the first that failed, until we know why
        self._quit: _Ended | None = None  # the first that ended well, while others go on
        self._well = Counter[Round]()  # by round: workers of a script without the SDK that are through already
        self._adopting = False  # this controller has just come, and not all agents have yet
        self._adopted = False  # it trained before this controller was there, and has not been heard since
        self._ends: list[wire.WorkerDown] = []  # of workers that ended before this controller was there
        self._resumable = self._finished = False
        self._kept = 0  # steps that are in a checkpoint, as far as we heard
        self._owes_save = False  # asked for, and not committed yet
        self._saver = ""  # the worker that saves on the way out; "" = rank 0, whoever that is

    # ------------------------------------------------------------------ orders of the kernel

    def move(self, generation: int, placement: Placement, batch: int, wall_s: float) -> None:
        """Start or resize: be `placement`, by whatever way keeps most."""
        if self._state is _State.OVER:
            return  # the kernel is about to hear why
        same = self._trains_as(placement) and batch == self._batch
        self.generation, self._placement, self._batch = generation, placement, batch
        self._nodes |= {node_id for node_id, _ in placement}
        if same:  # it has left a node already, say
            self._answer_move()
            return
        self._next_round()
        self._widths.ordered()
        self._suspect = self._quit = None
        if self._state is _State.ENDING and self.workers:  # it needs nothing any more
            self._answer_move()
            return
        if self.training and self._wanted > self._widths.widest and self.step > self._kept:
            self.save_now()  # nobody knows whether it can train so wide; the newcomers take a while to come
        self._enter(_State.GATHERING, wall_s)
        if not self.spec.sdk and self.workers:
            self._end_all(self.spec.grace_s, wall_s)  # the last to go starts the others
            return
        self._fit(wall_s)
        self._form_if_ready(wall_s)

    def stop(self, generation: int, *, resumable: bool, wall_s: float) -> None:
        """Save and leave; a job that will not be resumed ends without saving."""
        if self._state is _State.OVER:
            return
        tail = self._state is _State.ENDING  # all is saved, and nobody listens to Leave any more
        self.generation, self._resumable = generation, resumable
        self._next_round()
        self._suspect = self._quit = None
        self._enter(_State.STOPPING, wall_s)
        if resumable and self.spec.sdk and not tail and self._in(WorkerPhase.MEMBER):
            for worker in self._in(WorkerPhase.LAUNCHED, WorkerPhase.READY):
                self._end(worker, 0.0, wall_s)
            self._tell_to_leave(self._in(WorkerPhase.MEMBER), wall_s)
        else:
            self._end_all(self.spec.grace_s if resumable else min(self.spec.grace_s, 5.0), wall_s)
        self._stopped_if_empty(wall_s)

    def end_now(self, wall_s: float) -> None:
        """There is no time to save: what runs is ended."""
        self._end_all(0.0, wall_s)

    def adopt(self, generation: int, placement: Placement, *, trains: bool, wall_s: float) -> None:
        """A restarted controller: the job holds these GPUs; its agents will say which workers live."""
        self.generation, self._placement = generation, placement
        self._nodes = {node_id for node_id, _ in placement}
        self._next_round()
        self._adopting = self._adopted = True
        self.broken = not trains
        self._enter(_State.TRAINING if trains else _State.IDLE, wall_s)
        self._stepped_s = wall_s
        if trains:
            self._widths.stepped(self._wanted)

    def all_agents_came(self, wall_s: float) -> None:
        """After adoption: whoever has not come by now is gone; start what is missing."""
        ends, self._ends = self._ends, []
        self._adopting = False
        if self._state is not _State.TRAINING or self._members_complete():
            return
        if not self.workers and ends and all(down.code == 0 for down in ends):
            if self.spec.sdk and not self.step:
                self._fail(Fault.USER, how_it_stopped_short(WorkerPhase.LAUNCHED), 0, wall_s)
                return
            self._over(Outcome.FINISHED, wall_s, exit_code=0)
            return
        self.broken = True
        for down in ends:
            if fault_of(down.code) is Fault.USER and down.code != 0:
                why = down.error or how_it_ended(down.worker_id, down.code)
                self._fail(Fault.USER, why, down.code, wall_s, keep=bool(self._in(WorkerPhase.MEMBER)))
                return
        self._tell_restart("workers ended while the controller was away", None)
        if self.spec.sdk:
            self._once_more(wall_s)
        else:
            self.move(self.generation, self._placement, self._batch, wall_s)

    # ------------------------------------------------------------------ news of nodes and workers

    def agent_came(self, node_id: str, worker_ids: list[str], wall_s: float) -> None:
        """An agent came (back) with these workers of ours."""
        wanted = node_id in self._nodes and self._state not in (_State.OVER, _State.STOPPING, _State.RESTING)
        for worker_id in worker_ids:
            if worker_id not in self.workers:
                worker = self.workers[worker_id] = Worker(worker_id, node_id, WorkerPhase.MEMBER, wall_s)
                if not wanted:
                    self._end(worker, 0.0, wall_s)
        for worker in [w for w in self.workers.values() if w.node_id == node_id]:
            if worker.id in worker_ids:
                worker.missing_s = None
            elif worker.phase is WorkerPhase.LAUNCHED and worker.start is not None:
                self._send(worker, worker.start)
            else:
                worker.missing_s = wall_s  # how it ended comes next, if the agent knows
        if self._state is _State.FORMING:  # what was said meanwhile may not have arrived
            self.broken = True
            self._once_more(wall_s)

    def node_lost(self, node_id: str, wall_s: float) -> None:
        """The node is gone with all on it; if the kernel counted it as ours, it will say where to go on."""
        ours = node_id in self._nodes
        self._forget_node(node_id)
        if self._state is _State.OVER:
            return
        if self._state is _State.STOPPING:
            self._save_elsewhere(wall_s)
            self._stopped_if_empty(wall_s)
        elif not ours:
            self._proceed(wall_s)
        elif self._state is not _State.ENDING or not self.workers:
            self._suspect = self._quit = None
            self._enter(_State.IDLE, wall_s)
        if not self.spec.sdk and self.broken:
            self._end_all(0.0, wall_s)

    def evacuate(self, node_id: str, wall_s: float) -> None:
        """The node will be gone in a moment and no order came: go on without it, or save if there is nobody else.

        The kernel counts the node as ours until it is lost, and then says where to go on.
        """
        members = self._in(WorkerPhase.MEMBER)
        if self._state is not _State.TRAINING or self.broken or not any(w.node_id == node_id for w in members):
            return
        self._placement = tuple(part for part in self._placement if part[0] != node_id)
        self.round = self.round.after()
        if not self.spec.sdk:
            self._enter(_State.IDLE, wall_s)
            self._end_all(self.spec.grace_s, wall_s)
        elif self._placement:
            self._enter(_State.GATHERING, wall_s)
            self._form_if_ready(wall_s)
        else:
            self._enter(_State.IDLE, wall_s)
            self._tell_to_leave(members, wall_s)

    def save_now(self) -> None:
        """Rank 0 writes a checkpoint, beside the training; if it goes before that is done, the next rank 0 does."""
        self._owes_save = self.spec.sdk
        first = next((worker for worker in self._in(WorkerPhase.MEMBER) if worker.rank == 0), None)
        if self._owes_save and first is not None and self.training:
            self._send(first, wire.SaveNow(worker_id=first.id))

    def node_released(self, node_id: str, wall_s: float) -> None:
        """The node was given back: whoever was on it had left, or was to end."""
        for worker in [w for w in self.workers.values() if w.node_id == node_id]:
            self._gone(worker, wall_s, code=LEFT_ON_ORDER if worker.phase is WorkerPhase.LEAVING else -9, error="")

    def hear(self, message: wire.FromWorkerMessage | wire.AboutWorker, wall_s: float) -> None:
        """A worker said something, or its process came up or ended."""
        if self._adopting and isinstance(message, wire.WorkerDown):
            self._ends.append(message)
            self.workers.pop(message.worker_id, None)
            return
        worker = self.workers.get(message.worker_id)
        if worker is None:
            if self._adopting and isinstance(message, wire.Finished):  # its last word came before its end
                self.step, self.done = message.step, message.done
            return  # of a round long past
        match message:
            case wire.Ready():
                self._heard_ready(worker, wall_s)
            case wire.WorkerUp():
                if not self.spec.sdk:
                    self._heard_up(worker, message, wall_s)
            case wire.WorkerSeen():
                worker.quiet_s, worker.seen_s = message.quiet_s, wall_s
            case wire.Leading():
                self._heard_leading(worker, message)
            case wire.Joined():
                self._heard_joined(worker, message, wall_s)
            case wire.Stepped():
                self._heard_step(worker, message, wall_s)
            case wire.Busy():
                worker.busy_s = wall_s
            case wire.Broke():
                self._heard_broke(worker, message, wall_s)
            case wire.Left():
                worker.step, worker.left = message.step, True
                if not self._saver or worker.id == self._saver:
                    self.step, self.done = message.step, message.done
            case wire.Saved() | wire.SaveFailed():
                self._stepped_s = wall_s
                self._owes_save = self._owes_save and isinstance(message, wire.SaveFailed)
                self._kept = message.step if isinstance(message, wire.Saved) else self._kept
            case wire.Damaged():
                self._heard_damaged(message, wall_s)
            case wire.Finished():
                self._heard_finished(message, wall_s)
            case wire.WorkerDown():
                self._gone(worker, wall_s, message.code, message.error)

    def tick(self, wall_s: float) -> None:
        """Time has passed: start again after a pause, give up waiting for what hangs."""
        self._tick_workers(wall_s)
        waited_s = wall_s - self._since_s
        suspect, quitter = self._suspect, self._quit
        if suspect is not None and wall_s - suspect.at_s > JUDGE_S:
            keep = self._state is not _State.ENDING and bool(self._in(WorkerPhase.MEMBER))
            self._fail(suspect.fault, suspect.why, suspect.code, wall_s, keep=keep)
            return
        match self._state:
            case _State.RESTING if waited_s >= self._rest_s() and (self.spec.sdk or not self.workers):
                self._enter(_State.GATHERING, wall_s)
                self._fit(wall_s)
                self._form_if_ready(wall_s)
            case _State.GATHERING:
                self._tick_gathering(wall_s, waited_s)
            case _State.FORMING if self._apart_s is not None and wall_s - self._apart_s > APART_S:
                self._not_formed(self._cry or "the group fell apart while it formed", wall_s)
            case _State.FORMING if min(waited_s, self._unbusy_s(wall_s)) > FORM_S or waited_s > self._longest_s(FORM_S):
                self._not_formed(f"the group did not form within {waited_s:.0f} s", wall_s)
            case _State.TRAINING if self.spec.sdk and quitter is not None and wall_s - quitter.at_s > QUIT_S:
                self._fail(Fault.USER, quitter.why, quitter.code, wall_s)
            case _State.TRAINING if not self._members_complete() and suspect is None and quitter is None:
                self.broken = True
                self._fail(Fault.INFRA, "workers are missing", None, wall_s, keep=True)
            case _State.TRAINING if self._apart_s is not None and quitter is not None and self.spec.sdk:
                if wall_s - self._apart_s > APART_S:  # no word of a good end came: the others cry because it left
                    self._fail(Fault.USER, quitter.why, quitter.code, wall_s)
            case _State.TRAINING if self._apart_s is not None and wall_s - self._apart_s > APART_S:
                why = self._cry or "the group fell apart, though nobody is gone"
                self._fail(Fault.INFRA, why, None, wall_s, keep=True, unfit=True)
            case _State.TRAINING if self._adopted and self.spec.sdk and wall_s - self._stepped_s > ADOPTED_S:
                self._adopted = False  # perhaps they were about to form a group when the last controller died
                self._once_more(wall_s)
            case _State.TRAINING if not self.broken:
                self._tick_training(wall_s)
            case _State.ENDING if waited_s > TAIL_S:
                self._over(Outcome.FINISHED, wall_s, exit_code=0)
            case _State.IDLE if self.spec.sdk and waited_s > PARK_S and self._in(WorkerPhase.MEMBER):
                self.broken = True
                self._next_round()
                self._tell_to_leave(self._in(WorkerPhase.MEMBER), wall_s)
            case _:
                pass

    @property
    def training(self) -> bool:
        """It makes steps, or does what the script does after them."""
        gathers = self._state is _State.GATHERING and bool(self._in(WorkerPhase.MEMBER))
        return (not self.broken and (self._state is _State.TRAINING or gathers)) or self._state is _State.ENDING

    @property
    def working(self) -> int | None:
        """Workers that make steps, where it may hold GPUs on which none does; None if that cannot be told."""
        return self.size or None if self._state in (_State.TRAINING, _State.GATHERING) else None

    @property
    def idle(self) -> bool:
        """It follows no order."""
        return self._state is _State.IDLE

    @property
    def size(self) -> int:
        """Workers in the group."""
        return len(self._in(WorkerPhase.MEMBER))

    # ------------------------------------------------------------------ what workers say

    def _heard_ready(self, worker: Worker, wall_s: float) -> None:
        if worker.phase is WorkerPhase.LAUNCHED:
            self._become(worker, WorkerPhase.READY, wall_s)
            self._form_if_ready(wall_s)
        elif worker.phase is WorkerPhase.MEMBER and self._adopted and self.spec.sdk:  # it was started, and no more
            self._become(worker, WorkerPhase.READY, wall_s)
            if self._state is _State.TRAINING and not self._adopting:
                self.broken = True
                self._once_more(wall_s)

    def _heard_up(self, worker: Worker, message: wire.WorkerUp, wall_s: float) -> None:
        """Of a script without the SDK: it runs. Where the first of it is met is known now, and the others may start."""
        first = worker.phase is WorkerPhase.LAUNCHED and worker.rank == 0 and bool(message.port)
        if first:
            self._meeting = (self.round, (message.host, message.port))
        self._heard_ready(worker, wall_s)
        if first and self._state is _State.GATHERING:
            self._fit(wall_s)

    def _heard_joined(self, worker: Worker, message: wire.Joined, wall_s: float) -> None:
        worker.step = message.step
        if message.generation != self.round.number or worker.rank != 0 or self._state is not _State.FORMING:
            return
        self.joined = message
        self.step, self.done, self.work = message.step, message.done, message.work
        self._moved(wall_s)

    def _heard_step(self, worker: Worker, message: wire.Stepped, wall_s: float) -> None:
        if message.generation > self.round.number or (self.joined and message.generation < self.joined.generation):
            return
        worker.step, self._stepped_s, self._adopted = message.step, wall_s, False
        self.step, self.done, self.stepped = message.step, message.done, message
        if self._state is _State.TRAINING and message.generation == self.round.number:
            self._widths.stepped(self._wanted)

    def _heard_broke(self, worker: Worker, message: wire.Broke, wall_s: float) -> None:
        worker.step = message.step
        formed = self.joined.generation if self.joined else 0
        current = message.generation == self.round.number or self._adopted
        if current and self._state in (_State.TRAINING, _State.FORMING):
            self.broken, self._apart_s = True, self._apart_s or wall_s
            self._cry = self._cry or message.why
        elif message.generation == formed and self._state is _State.GATHERING:
            self.broken = True  # nobody trains on while we gather
        elif message.generation == formed and self._state is _State.ENDING and self.spec.sdk:
            self.broken = True  # the one that had the last word is gone before all had heard it
            self._once_more(wall_s)

    def _heard_leading(self, worker: Worker, message: wire.Leading) -> None:
        if message.generation == self.round.number and self._state is _State.FORMING:
            for other in self._in(WorkerPhase.MEMBER):
                if other.id != worker.id:
                    self._send(other, meet_from(message, other.id))

    def _heard_damaged(self, message: wire.Damaged, wall_s: float) -> None:
        """If none is left, nobody begins at 0 unasked: the order counts as followed, and the job will be held."""
        if message.step < 0 and self._state is _State.FORMING:
            self.broken = True
            self._enter(_State.IDLE, wall_s)
            self._answer_move()

    def _heard_finished(self, message: wire.Finished, wall_s: float) -> None:
        self.step, self.done, self._finished = message.step, message.done, True
        if self._state in (_State.OVER, _State.STOPPING, _State.ENDING):
            return
        for worker in self._in(WorkerPhase.LAUNCHED, WorkerPhase.READY):
            self._end(worker, 0.0, wall_s)
        self._enter(_State.ENDING, wall_s)

    # ------------------------------------------------------------------ forming a group

    def _fit(self, wall_s: float) -> None:
        """Launch what the placement lacks; end newcomers that it has no room for (members train on until it forms)."""
        staying, leaving = split(self._in(*NOT_LEAVING), self._placement)
        for worker in leaving:
            if worker.phase is not WorkerPhase.MEMBER:
                self._end(worker, 0.0, wall_s)
        have = Counter(worker.node_id for worker in staying)
        taken = {worker.rank for worker in self._in(*NOT_LEAVING)}
        free = (rank for rank in range(len(taken) + sum(gpus for _, gpus in self._placement)) if rank not in taken)
        for node_id, gpus in self._placement:
            for _ in range(gpus - have[node_id]):
                if (rank := next(free)) == 0 or not self._awaits_address:
                    self._launch(node_id, rank, wall_s)

    def _launch(self, node_id: str, rank: int, wall_s: float) -> None:
        name = f"{self.job_id}.{self.round.number}.{self._started}"
        worker = Worker(name, node_id, since_s=wall_s, born_s=wall_s, rank=rank)
        self._started += 1
        self.workers[worker.id] = worker
        worker.start = start_order(
            worker.id,
            self.job_id,
            self.spec,
            rank=rank,
            placement=self._placement,
            ours={**self._env(), "SUBLET_GENERATION": str(self.round.number)},
            meeting=None if self._meeting is None or rank == 0 else self._meeting[1],
            restarts=self.failures.total(),
            log=self._log_of(worker.id),
        )
        self._send(worker, worker.start)

    def _form_if_ready(self, wall_s: float) -> None:
        """Everybody of the placement is here: agree on ranks and let the group form."""
        if self._state is not _State.GATHERING or self._in(WorkerPhase.LAUNCHED):
            return
        staying, leaving = split(self._in(WorkerPhase.READY, WorkerPhase.MEMBER), self._placement)
        here = len(staying) + self._well[self.round]
        if here < self._wanted or not staying:
            return
        anew = not any(worker.phase is WorkerPhase.MEMBER for worker in staying)
        old = [worker for worker in leaving if worker.phase is WorkerPhase.MEMBER]
        if anew and old and self.spec.sdk:  # nobody stays to hand the state over: it goes through a checkpoint
            self._tell_to_leave(old, wall_s)
        if (anew or not self.spec.sdk) and self._in(WorkerPhase.LEAVING):
            return  # the old processes still hold the GPUs, and a whole group of them might train on
        self._suspect = self._quit = None
        if not self.spec.sdk:
            for worker in staying:
                self._become(worker, WorkerPhase.MEMBER, wall_s)
            self._moved(wall_s)
            return
        for order in regroups(staying, self.round.number, self._batch, broken=self.broken):
            worker = self.workers[order.worker_id]
            self._send(worker, order)
            self._become(worker, WorkerPhase.MEMBER, wall_s)
        for worker in leaving:
            self._send(worker, wire.Leave(worker_id=worker.id, generation=self.round.number, broken=self.broken))
            self._become(worker, WorkerPhase.LEAVING, wall_s)
        self._enter(_State.FORMING, wall_s)

    def _moved(self, wall_s: float) -> None:
        self.broken = self._adopted = False
        self._unformed, self._stepped_s = 0, wall_s
        self._enter(_State.TRAINING, wall_s)
        self._answer_move()
        if self._owes_save:  # a new group fences off what the old rank 0 was writing
            self.save_now()

    def _answer_move(self) -> None:
        self._nodes = {node_id for node_id, _ in self._placement}
        self.news.append(GroupNews(outcome=Outcome.MOVED, generation=self.generation))

    def _once_more(self, wall_s: float) -> None:
        """A new round under the same order, with all who are here."""
        self.round = self.round.after()
        self._enter(_State.GATHERING, wall_s)
        self._fit(wall_s)
        self._form_if_ready(wall_s)

    # ------------------------------------------------------------------ leaving

    def _tell_to_leave(self, members: list[Worker], wall_s: float) -> None:
        """Rank 0 saves. In a broken group nobody knows who that is: the one with the most steps does."""
        members = sorted(members, key=lambda w: (-w.step, w.rank))
        self._saver = members[0].id if self.broken else ""
        for worker in members:
            save = not self.broken or worker.id == self._saver
            leave = wire.Leave(worker_id=worker.id, generation=self.round.number, save=save, broken=self.broken)
            self._send(worker, leave)
            self._become(worker, WorkerPhase.LEAVING, wall_s)

    def _save_elsewhere(self, wall_s: float) -> None:
        """Somebody died on the way out: unless the one that saves is through, another must."""
        waiting = [w for w in self._in(WorkerPhase.LEAVING) if not w.left]
        saver = self.workers.get(self._saver)
        if not (self._resumable and self.spec.sdk and waiting) or (saver is not None and not saver.left):
            return
        if any(worker.left for worker in self.workers.values()):
            return
        self.broken = True
        self.round = self.round.after()
        self._tell_to_leave(waiting, wall_s)

    def _stopped_if_empty(self, wall_s: float) -> None:
        if self._state is not _State.STOPPING or self.workers:
            return
        self.broken = False
        self._saver, self._nodes = "", set()
        if self._resumable and self._finished:
            self._over(Outcome.FINISHED, wall_s, exit_code=0)
        elif self._resumable:
            self._enter(_State.IDLE, wall_s)
            self.news.append(GroupNews(outcome=Outcome.STOPPED, generation=self.generation))
        else:
            self._enter(_State.OVER, wall_s)

    # ------------------------------------------------------------------ ends and failures

    def _gone(self, worker: Worker, wall_s: float, code: int, error: str) -> None:
        del self.workers[worker.id]
        if self._state is _State.OVER:
            return
        if self._state is _State.STOPPING:
            if code not in (0, LEFT_ON_ORDER):
                self._save_elsewhere(wall_s)
            self._stopped_if_empty(wall_s)
            return
        if worker.phase is WorkerPhase.LEAVING:
            self._proceed(wall_s)
            return
        through = self._state is _State.ENDING or (code == 0 and not self.spec.sdk)
        self.broken = self.broken or (worker.phase is WorkerPhase.MEMBER and not through)
        if self._state is _State.IDLE:
            return  # the kernel's next order finds it missing
        why = error if code > 0 and error else how_it_ended(worker.id, code)
        if code == 0 and self.spec.sdk:
            why = how_it_stopped_short(worker.phase, worker.id)
        ended = _Ended(fault=Fault.USER if code == 0 else fault_of(code), why=why, code=code, at_s=wall_s)
        if code == 0 and worker.rank == 0 and self._awaits_address:  # it ended before we had heard of its start
            self._fail(Fault.INFRA, f"{worker.id} was not met by the others", None, wall_s)
            return
        if code == 0:
            self._quit = self._quit or ended
            if not self.spec.sdk:
                self._well[self.round] += 1
                self._form_if_ready(wall_s)
        elif ended.fault is Fault.USER:
            self._suspect = self._suspect or ended
        elif self._state is _State.ENDING:
            self._suspect = self._suspect or ended  # the rest of the script may still end well; then look
        else:
            keep = worker.phase is not WorkerPhase.MEMBER or bool(self._in(WorkerPhase.MEMBER))
            self._fail(Fault.INFRA, why, code, wall_s, keep=keep)
            return
        if not self._in(*NOT_LEAVING):  # nobody is left to wait for
            if self._suspect is not None:
                self._fail(self._suspect.fault, self._suspect.why, self._suspect.code, wall_s)
            elif self.spec.sdk and not self._finished:
                self._fail(Fault.USER, how_it_stopped_short(worker.phase), code, wall_s)
            else:
                self._over(Outcome.FINISHED, wall_s, exit_code=0)

    def _proceed(self, wall_s: float) -> None:
        """One that was to go has gone: perhaps the others waited for that."""
        if self._state is _State.GATHERING and not self.spec.sdk and not self.workers:
            self._fit(wall_s)
        self._form_if_ready(wall_s)

    def _fail(
        self,
        fault: Fault,
        why: str,
        code: int | None,
        wall_s: float,
        *,
        keep: bool = False,
        unfit: bool = False,
        silent_s: float = 0.0,
    ) -> None:
        """Count it; start again what is missing (`keep`: with the survivors and their state), or give up.

        `unfit`: nobody is to blame for it but, perhaps, the width. `silent_s`: it hung for so long.
        """
        self._suspect = self._quit = None
        crashed = fault is Fault.USER and code != 0 and self._state is not _State.ENDING
        if unfit or crashed:
            narrow = self._widths.back_from(self._wanted, self.spec, crashed=crashed)
            if narrow is not None:
                self._go_back(narrow, why, code, wall_s, keep=keep)
                return
        self.failures[fault] += 1
        if fault is Fault.INFRA:
            trained_s = wall_s - self._failed_s - silent_s
            self._in_a_row = 1 if trained_s > FORGIVEN_S else self._in_a_row + 1
            self._failed_s = wall_s
        limit, count = self.spec.retries.infra, self._in_a_row
        if fault is Fault.USER:
            limit, count = self.spec.retries.user, self.failures[fault]
        hopeless = fault is Fault.USER and self.spec.sdk and self.step == 0  # it would fail again before its first step
        if hopeless or (limit is not None and count > limit):
            self._over(Outcome.FAILED, wall_s, why=why, exit_code=code, silent_s=silent_s)
            return
        self._tell_restart(why, code, silent_s)
        self.round = self.round.after()
        keep = keep and self.spec.sdk
        if not keep:  # what hangs or is wrong in one is wrong in all: start all anew
            self._end_all(0.0, wall_s)
            self.broken = True
        self._enter(_State.RESTING, wall_s)
        if keep and self._unformed <= 2:  # noqa: PLR2004 - then with a pause
            self._unformed += 1
            self._enter(_State.GATHERING, wall_s)
            self._fit(wall_s)
            self._form_if_ready(wall_s)

    def _go_back(self, width: int, why: str, code: int | None, wall_s: float, *, keep: bool) -> None:
        """The width of the order does not work: go on with the last that did, and let the kernel know."""
        told = GroupNews(
            outcome=Outcome.NARROWED,
            generation=self.generation,
            why=why,
            exit_code=code,
            width=self._wanted,
            back_to=width,
        )
        self.news.append(told)
        self._placement = narrowed(self._placement, width, self._in(WorkerPhase.READY, WorkerPhase.MEMBER))
        self._in_a_row -= min(self._in_a_row, self._widths.failures - 1)  # the tries before this one are forgiven
        self._widths.ordered()
        if keep and self.spec.sdk and self._in(WorkerPhase.MEMBER):
            self._once_more(wall_s)
            return
        self.round = self.round.after()
        self._end_all(0.0, wall_s)
        self.broken = True
        self._enter(_State.RESTING, wall_s)

    def _not_formed(self, why: str, wall_s: float) -> None:
        """Once, all try again; then all are started anew."""
        self.broken = True
        self._fail(Fault.INFRA, why, None, wall_s, keep=self._unformed <= 1, unfit=True)

    def _tell_restart(self, why: str, code: int | None, silent_s: float = 0.0) -> None:
        told = GroupNews(
            outcome=Outcome.RESTARTED, generation=self.generation, why=why, exit_code=code, silent_s=silent_s
        )
        self.news.append(told)

    def _over(
        self, outcome: Outcome, wall_s: float, *, why: str = "", exit_code: int | None = None, silent_s: float = 0.0
    ) -> None:
        self._enter(_State.OVER, wall_s)
        self._suspect = self._quit = None
        self._end_all(5.0 if outcome is Outcome.FINISHED else 0.0, wall_s)
        told = GroupNews(outcome=outcome, generation=self.generation, why=why, exit_code=exit_code, silent_s=silent_s)
        self.news.append(told)

    # ------------------------------------------------------------------ time

    def _tick_workers(self, wall_s: float) -> None:
        for worker in list(self.workers.values()):
            if worker.missing_s is not None and wall_s - worker.missing_s > JUDGE_S:
                self._gone(worker, wall_s, code=-9, error="")
            elif worker.phase is WorkerPhase.LEAVING and wall_s - worker.since_s > max(self.spec.grace_s, LEAVE_S):
                self._end(worker, 0.0, wall_s)

    def _tick_gathering(self, wall_s: float, waited_s: float) -> None:
        late = [w for w in self._in(WorkerPhase.LAUNCHED) if wall_s - w.since_s > READY_S]
        for worker in late:
            self._end(worker, 0.0, wall_s)
        if late:
            self._fail(
                Fault.INFRA, f"{late[0].id} opened no session within {READY_S:g} s", None, wall_s, keep=True, unfit=True
            )
        elif waited_s > READY_S and not self._in(WorkerPhase.LAUNCHED) and (self.spec.sdk or not self.workers):
            fault = Fault.INFRA if self._quit is None else Fault.USER
            why = "workers are missing" if self._quit is None else self._quit.why
            self._fail(fault, why, None, wall_s)

    def _tick_training(self, wall_s: float) -> None:
        if not self.spec.sdk:
            silent_s = silence(self._in(WorkerPhase.MEMBER), wall_s)
            if silent_s > self.spec.hang_s:
                why = f"no output and no use of a processor for {silent_s:.0f} s: it hangs"
                self._fail(Fault.INFRA, why, None, wall_s, silent_s=silent_s)
            elif wall_s - self._since_s > WORKS_S:
                self._widths.stepped(self._wanted)
            return
        stepped = self.stepped if self.joined and self.stepped and self.stepped.step > self.joined.step else None
        limit_s = FIRST_STEP_S if stepped is None else max(SILENT_S, STEPS * stepped.step_s)
        stood_s = wall_s - self._stepped_s
        silent_s = min(stood_s, self._unbusy_s(wall_s))
        if silent_s > limit_s:
            why = f"no step for {stood_s:.0f} s: it hangs"
            self._fail(Fault.INFRA, why, None, wall_s, unfit=stepped is None, silent_s=silent_s)
        elif stood_s > self._longest_s(limit_s):
            why = f"no step for {stood_s:.0f} s, though its script does something (training.hang): it hangs"
            self._fail(Fault.INFRA, why, None, wall_s, unfit=stepped is None, silent_s=stood_s)

    def _unbusy_s(self, wall_s: float) -> float:
        """Since when no member said that it is in its script's own code, where it makes no step and hears no order."""
        return wall_s - max((worker.busy_s for worker in self._in(WorkerPhase.MEMBER)), default=-math.inf)

    def _longest_s(self, limit_s: float) -> float:
        """For which a script may be in its own code, where others get `limit_s`."""
        return max(limit_s, self.spec.hang_s)

    def _rest_s(self) -> float:
        return float(min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2.0 ** min(self.failures.total() - 1, 30)))

    # ------------------------------------------------------------------ small things

    def _trains_as(self, placement: Placement) -> bool:
        """It makes steps in just this form, and nobody is on the way."""
        if self._state is not _State.TRAINING or self.broken or self._apart_s is not None or not self.spec.sdk:
            return False
        return not self._in(WorkerPhase.LAUNCHED, WorkerPhase.READY) and Counter(
            worker.node_id for worker in self._in(WorkerPhase.MEMBER)
        ) == Counter(dict(placement))

    def _next_round(self) -> None:
        self.round = max(self.round.after(), Round(self.generation, self._life))

    def _forget_node(self, node_id: str) -> None:
        for worker in [w for w in self.workers.values() if w.node_id == node_id]:
            del self.workers[worker.id]
            self.broken = self.broken or worker.phase is WorkerPhase.MEMBER
        self._placement = tuple(part for part in self._placement if part[0] != node_id)
        self._nodes.discard(node_id)

    def _members_complete(self) -> bool:
        return len(self._in(WorkerPhase.MEMBER)) == self._wanted

    @property
    def _awaits_address(self) -> bool:
        """Nobody knows yet where a script without the SDK meets: its first worker is to start before the others."""
        known = self._meeting is not None and self._meeting[0] == self.round
        return not self.spec.sdk and self._wanted > 1 and not known

    @property
    def _wanted(self) -> int:
        """Workers of the placement."""
        return sum(gpus for _, gpus in self._placement)

    def _in(self, *phases: WorkerPhase) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.phase in phases]

    def _end_all(self, grace_s: float, wall_s: float) -> None:
        for worker in list(self.workers.values()):
            self._end(worker, grace_s, wall_s)

    def _end(self, worker: Worker, grace_s: float, wall_s: float) -> None:
        self._send(worker, wire.EndWorker(worker_id=worker.id, grace_s=grace_s))
        self._become(worker, WorkerPhase.LEAVING, wall_s)

    def _send(self, worker: Worker, message: ToAgent) -> None:
        self.outbox.append((worker.node_id, message))

    def _become(self, worker: Worker, phase: WorkerPhase, wall_s: float) -> None:
        worker.phase, worker.since_s = phase, wall_s

    def _enter(self, state: _State, wall_s: float) -> None:
        self._state, self._since_s, self._apart_s, self._cry = state, wall_s, None, ""


NOT_LEAVING = (WorkerPhase.LAUNCHED, WorkerPhase.READY, WorkerPhase.MEMBER)


def meet_from(leading: wire.Leading, worker_id: str) -> wire.Meet:
    """The leader's address, for another member."""
    return wire.Meet(worker_id=worker_id, generation=leading.generation, host=leading.host, port=leading.port)
