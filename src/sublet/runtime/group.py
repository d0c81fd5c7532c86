"""The workers of one job: from the kernel's orders to messages, and from messages to the kernel's events.

Pure: no clock, no socket. Every verb takes the wall time and leaves what is to be sent in `outbox` and what the kernel
is to hear in `news`. A *round* is one agreement on who belongs to the group; it goes out as the `generation` of a
message and counts within the kernel's generation, so that a restart of workers under one order is a new round.

    launched -> ready -> member -> (leaving) -> gone

A planned change lets the old group train on until the newcomers are ready; a broken one cannot train, so it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sublet.domain.shape import Placement
from sublet.runtime.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import ToAgent

__all__ = ["ROUNDS", "Group", "GroupNews", "Outcome", "Worker", "WorkerPhase"]

ROUNDS = 1_000  # rounds within one generation of the kernel, at most
LEFT_ON_ORDER = 83  # exit code of a worker that left as told
SILENT_S = 60.0  # a group that makes no step for so long, and for STEPS of its own steps, hangs
STEPS = 5.0
FORM_S = 30.0  # wall, from the order to the first joined member, before silence counts as failure
READY_S = 120.0  # wall, from the start of a worker to its session: imports, data
APART_S = 2.0  # wall, from a member's cry that the group fell apart until we regroup though nobody is missing
TAIL_S = 600.0  # wall, for what a script does after its training
BACK_OFF_S = 0.5  # before the first retry, doubled at each further one
LONGEST_BACK_OFF_S = 60.0


class WorkerPhase(StrEnum):
    """Where a worker stands."""

    LAUNCHED = "launched"  # its process was ordered or runs; its session has not opened
    READY = "ready"  # waits for a group
    MEMBER = "member"  # trains
    LEAVING = "leaving"  # was told to leave, or to end


@dataclass(slots=True)
class Worker:
    """One training process."""

    id: str
    node_id: str
    phase: WorkerPhase = WorkerPhase.LAUNCHED
    since_s: float = 0.0  # wall, in this phase
    rank: int = -1
    step: int = 0
    start: wire.StartWorker | None = None  # said again to an agent that may not have heard it


class Outcome(StrEnum):
    """What the kernel, or the controller, has to know of a group."""

    MOVED = "moved"  # trains in the shape of the last order
    STOPPED = "stopped"  # has left all its GPUs, saved
    FINISHED = "finished"
    FAILED = "failed"
    RESTARTED = "restarted"  # failed and was started again, under the same order
    LOST_WORKER = "lost-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNews:
    """One outcome, with the kernel's generation that it answers."""

    outcome: Outcome
    generation: int
    why: str = ""
    exit_code: int | None = None


class _State(StrEnum):
    IDLE = "idle"
    GATHERING = "gathering"  # newcomers are on their way; members train on, unless broken
    FORMING = "forming"  # Regroup is out
    TRAINING = "training"
    RESTING = "resting"  # failed; starts again after a pause
    STOPPING = "stopping"
    ENDING = "ending"  # all steps are made; the script does what it does after them
    OVER = "over"


class Group:
    """See the module. `log_of(rank)` names the file for a worker's output, `env_of(...)` adds to its environment."""

    def __init__(
        self,
        job_id: str,
        spec: JobSpec,
        *,
        log_of: Callable[[int], str],
        env: Callable[[], dict[str, str]],
        address_of: Callable[[], tuple[str, int]],
    ) -> None:
        self.job_id, self.spec = job_id, spec
        self.outbox: list[tuple[str, ToAgent]] = []
        self.news: list[GroupNews] = []
        self.workers: dict[str, Worker] = {}
        self.generation = 0  # of the kernel's last order
        self.round = 0
        self.broken = False  # a member is gone: nobody can make a step
        self.step, self.done = 0, 0.0  # as last reported
        self.work: float | None = None
        self.joined: wire.Joined | None = None
        self.stepped: wire.Stepped | None = None
        self.failures = Counter[str]()  # by whose fault: user, infra
        self._state = _State.IDLE
        self._placement: Placement = ()
        self._batch = 0
        self._log_of, self._env, self._address_of = log_of, env, address_of
        self._meeting = (-1, ("", 0))  # (round, where its workers meet), for a script without the SDK
        self._started = 0  # workers launched in this round
        self._since_s = 0.0  # wall, in this state
        self._stepped_s = 0.0  # wall, of the last sign of progress
        self._resumable = True
        self._saver = ""  # the worker that saves on the way out

    # ------------------------------------------------------------------ orders of the kernel

    def move(self, generation: int, placement: Placement, batch: int, wall_s: float) -> None:
        """Start or resize: be `placement`, by whatever way keeps most."""
        self.generation, self._placement, self._batch = generation, placement, batch
        self.round = max(self.round + 1, generation * ROUNDS)
        if self._state is _State.ENDING and self.workers:  # it needs nothing any more
            self.news.append(GroupNews(outcome=Outcome.MOVED, generation=generation))
            return
        self._enter(_State.GATHERING, wall_s)
        if not self.spec.sdk and self.workers:
            self._end_all(self.spec.grace_s, wall_s)  # the last to go starts the others
            return
        self._launch_missing(wall_s)
        self._form_if_ready(wall_s)

    def stop(self, generation: int, *, resumable: bool, wall_s: float) -> None:
        """Save and leave; a job that will not be resumed ends without saving."""
        self.generation, self._resumable = generation, resumable
        self.round = max(self.round + 1, generation * ROUNDS)
        self._enter(_State.STOPPING, wall_s)
        members = sorted(self._in(WorkerPhase.MEMBER), key=lambda w: (-w.step, w.rank))
        if not (resumable and self.spec.sdk and members):
            self._end_all(self.spec.grace_s if resumable else min(self.spec.grace_s, 5.0), wall_s)
        else:
            self._saver = members[0].id
            for worker in self.workers.values():
                if worker.phase is WorkerPhase.MEMBER:
                    leave = wire.Leave(
                        worker_id=worker.id,
                        generation=self.round,
                        save=worker.id == self._saver,
                        broken=self.broken,
                    )
                    self._send(worker, leave)
                    self._become(worker, WorkerPhase.LEAVING, wall_s)
                else:
                    self._end(worker, 0.0, wall_s)
        self._stopped_if_empty()

    def adopt(self, generation: int, placement: Placement, wall_s: float) -> None:
        """A restarted controller: the job trains, its agents will say with whom."""
        self.generation, self._placement = generation, placement
        self.round = max(self.round, generation * ROUNDS + ROUNDS // 2)  # above all that the one before us gave out
        self._enter(_State.TRAINING, wall_s)
        self._stepped_s = wall_s

    def count_members(self, wall_s: float) -> None:
        """After adoption, when all agents have come: start what is missing, as after a failure."""
        if self._state is _State.TRAINING and not self._members_complete():
            self.broken = True
            self._fail("infra", "workers ended while the controller was away", 0, wall_s)

    # ------------------------------------------------------------------ news of nodes and workers

    def agent_came(self, node_id: str, worker_ids: list[str], wall_s: float) -> None:
        """An agent came (back) with these workers of ours."""
        for worker_id in worker_ids:
            if worker_id not in self.workers:
                self.workers[worker_id] = Worker(worker_id, node_id, WorkerPhase.MEMBER, wall_s)
        for worker in [w for w in self.workers.values() if w.node_id == node_id and w.id not in worker_ids]:
            if worker.phase is not WorkerPhase.LAUNCHED:
                self._gone(worker, wall_s, code=-9, error="its process is gone")
            elif worker.start is not None:
                self._send(worker, worker.start)

    def node_lost(self, node_id: str, wall_s: float) -> None:
        """The node is gone with all on it; the kernel will say where to go on."""
        for worker in [w for w in self.workers.values() if w.node_id == node_id]:
            del self.workers[worker.id]
            self.broken = self.broken or worker.phase is WorkerPhase.MEMBER
        self._placement = tuple(part for part in self._placement if part[0] != node_id)
        if self._state is _State.STOPPING:
            self._stopped_if_empty()
        elif self._state is not _State.ENDING or not self.workers:
            self._enter(_State.IDLE, wall_s)  # until the next order
        if not self.spec.sdk and self.broken:
            self._end_all(0.0, wall_s)

    def node_released(self, node_id: str, wall_s: float) -> None:
        """The node was given back: whoever was on it had left, or was to end."""
        for worker in [w for w in self.workers.values() if w.node_id == node_id]:
            self._gone(worker, wall_s, code=LEFT_ON_ORDER if worker.phase is WorkerPhase.LEAVING else -9, error="")

    def hear(self, message: wire.FromWorkerMessage | wire.WorkerUp | wire.WorkerDown, wall_s: float) -> None:
        """A worker said something, or its process came up or ended."""
        worker = self.workers.get(message.worker_id)
        if worker is None:
            return  # of a round long past
        match message:
            case wire.Ready():
                if worker.phase is WorkerPhase.LAUNCHED:
                    self._become(worker, WorkerPhase.READY, wall_s)
                    self._form_if_ready(wall_s)
            case wire.WorkerUp():
                if not self.spec.sdk:
                    self._become(worker, WorkerPhase.READY, wall_s)
                    self._form_if_ready(wall_s)
            case wire.Leading():
                if message.generation == self.round:
                    for other in self._in(WorkerPhase.MEMBER):
                        if other.id != worker.id:
                            self._send(other, replace_id(message, other.id))
            case wire.Joined():
                self._heard_joined(worker, message, wall_s)
            case wire.Stepped():
                worker.step, self._stepped_s = message.step, wall_s
                self.step, self.done, self.stepped = message.step, message.done, message
            case wire.Broke():
                worker.step = message.step
                if message.generation == self.round and self._state is _State.TRAINING and not self.broken:
                    self.broken, self._since_s = True, wall_s
            case wire.Left():
                worker.step = message.step
                if worker.id == self._saver or not self._saver:
                    self.step, self.done = message.step, message.done
            case wire.Saved():
                self._stepped_s = wall_s
            case wire.Finished():
                self.step, self.done = message.step, message.done
                if self._state is not _State.OVER:
                    self._enter(_State.ENDING, wall_s)
            case wire.WorkerDown():
                self._gone(worker, wall_s, message.code, message.error)

    def tick(self, wall_s: float) -> None:
        """Time has passed: start again after a pause, give up waiting for what hangs."""
        waited_s = wall_s - self._since_s
        match self._state:
            case _State.RESTING if waited_s >= self._rest_s():
                self._launch_missing(wall_s)
                self._enter(_State.GATHERING, wall_s)
                self._form_if_ready(wall_s)
            case _State.GATHERING:
                late = [w for w in self._in(WorkerPhase.LAUNCHED) if wall_s - w.since_s > READY_S]
                if late:
                    self._fail("infra", f"{late[0].id} opened no session within {READY_S:g} s", None, wall_s)
            case _State.FORMING if waited_s > FORM_S:
                self._fail("infra", f"the group did not form within {FORM_S:g} s", None, wall_s)
            case _State.TRAINING if self.broken and waited_s > APART_S and self._members_complete():
                self._fail("infra", "the group fell apart, though nobody is gone", 0, wall_s)
            case _State.ENDING if waited_s > TAIL_S:
                self._over(Outcome.FINISHED, wall_s, exit_code=0)
            case _State.TRAINING if self.spec.sdk and self._members_complete() and not self.broken:
                step_s = self.stepped.step_s if self.stepped is not None else 0.0
                limit_s = max(SILENT_S, STEPS * step_s)
                if wall_s - self._stepped_s > limit_s:
                    self._fail("infra", f"no step for {limit_s:.0f} s: it hangs", None, wall_s)
            case _State.STOPPING if waited_s > max(self.spec.grace_s, FORM_S):
                for worker in list(self.workers.values()):
                    self._end(worker, 0.0, wall_s)

    @property
    def training(self) -> bool:
        """It makes steps."""
        gathers = self._state is _State.GATHERING and bool(self._in(WorkerPhase.MEMBER))
        return not self.broken and (self._state is _State.TRAINING or gathers)

    @property
    def size(self) -> int:
        """Workers in the group."""
        return len(self._in(WorkerPhase.MEMBER))

    # ------------------------------------------------------------------ forming a group

    def _launch_missing(self, wall_s: float) -> None:
        have = Counter(w.node_id for w in self.workers.values() if w.phase is not WorkerPhase.LEAVING)
        rank = sum(have.values())
        self._started = 0
        for node_id, gpus in self._placement:
            for _ in range(gpus - have[node_id]):
                self._launch(node_id, rank, wall_s)
                rank += 1

    def _launch(self, node_id: str, rank: int, wall_s: float) -> None:
        worker = Worker(f"{self.job_id}.{self.round}.{self._started}", node_id, since_s=wall_s, rank=rank)
        self._started += 1
        self.workers[worker.id] = worker
        env = {**self._env(), "SUBLET_GENERATION": str(self.round)}
        if not self.spec.sdk:
            env |= self._torchrun(worker)
        start = wire.StartWorker(
            worker_id=worker.id,
            job_id=self.job_id,
            argv=self.spec.argv,
            env={**self.spec.env, **self.spec.secrets, **env},
            cwd=self.spec.cwd,
            log=self._log_of(rank),
        )
        worker.start = start
        self._send(worker, start)

    def _torchrun(self, worker: Worker) -> dict[str, str]:
        """What torchrun would set, for a script that knows nothing of us."""
        slots = list(_slots(self._placement))
        rank = worker.rank
        node_id, local_rank, node_rank = slots[rank]
        del node_id
        local_world = dict(enumerate(gpus for _, gpus in self._placement))[node_rank]
        if self._meeting[0] != self.round:  # one address for all workers of a round
            self._meeting = (self.round, self._address_of())
        host, port = self._meeting[1]
        world = len(slots)
        restarts = str(self.failures.total())
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(local_world),
            "GROUP_RANK": str(node_rank),
            "GROUP_WORLD_SIZE": str(len(self._placement)),
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(world),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": restarts,
            "TORCHELASTIC_MAX_RESTARTS": "1000000",
            "TORCHELASTIC_RUN_ID": self.job_id,
        }

    def _form_if_ready(self, wall_s: float) -> None:
        """Everybody of the placement is here: agree on ranks and let the group form."""
        if self._state is not _State.GATHERING:
            return
        here = [w for w in self.workers.values() if w.phase in (WorkerPhase.READY, WorkerPhase.MEMBER)]
        wanted = Counter(dict(self._placement))
        if self._in(WorkerPhase.LAUNCHED) or any(
            Counter(w.node_id for w in here)[node] < gpus for node, gpus in wanted.items()
        ):
            return
        staying, leaving = _split(here, wanted)
        if not self.spec.sdk:
            if self._in(WorkerPhase.LEAVING):
                return  # the old processes still hold the GPUs
            for worker in staying:
                self._become(worker, WorkerPhase.MEMBER, wall_s)
            self._moved(wall_s)
            return
        members = sorted(staying, key=lambda w: (w.phase is not WorkerPhase.MEMBER, -w.step, w.rank))
        nodes = list(dict.fromkeys(w.node_id for w in members))
        seen = Counter[str]()
        on_node = Counter(w.node_id for w in members)
        for rank, worker in enumerate(members):
            order = wire.Regroup(
                worker_id=worker.id,
                generation=self.round,
                rank=rank,
                world=len(members),
                local_rank=seen[worker.node_id],
                local_world=on_node[worker.node_id],
                node_rank=nodes.index(worker.node_id),
                nodes=len(nodes),
                batch=self._batch,
                broken=self.broken,
            )
            seen[worker.node_id] += 1
            worker.rank = rank
            self._send(worker, order)
            self._become(worker, WorkerPhase.MEMBER, wall_s)
        for worker in leaving:
            self._send(worker, wire.Leave(worker_id=worker.id, generation=self.round, broken=self.broken))
            self._become(worker, WorkerPhase.LEAVING, wall_s)
        self._enter(_State.FORMING, wall_s)

    def _heard_joined(self, worker: Worker, message: wire.Joined, wall_s: float) -> None:
        worker.step = message.step
        if message.generation != self.round or worker.rank != 0 or self._state is not _State.FORMING:
            return
        self.joined = message
        self.step, self.done, self.work = message.step, message.done, message.work
        self._moved(wall_s)

    def _moved(self, wall_s: float) -> None:
        self.broken = False
        self._stepped_s = wall_s
        self._enter(_State.TRAINING, wall_s)
        self.news.append(GroupNews(outcome=Outcome.MOVED, generation=self.generation))

    # ------------------------------------------------------------------ failures

    def _gone(self, worker: Worker, wall_s: float, code: int, error: str) -> None:
        del self.workers[worker.id]
        if self._state is _State.OVER:
            return
        if self._state is _State.STOPPING:
            self._stopped_if_empty()
        elif self._state is _State.ENDING and (worker.phase is WorkerPhase.LEAVING or code == 0):
            if not self.workers:
                self._over(Outcome.FINISHED, wall_s, exit_code=0)
        elif worker.phase is WorkerPhase.LEAVING:
            if self._state is _State.GATHERING and not self.spec.sdk and not self.workers:
                self._launch_missing(wall_s)
            self._form_if_ready(wall_s)
        elif code == 0:  # it thinks that it is done; the others, or the word of the first, will follow
            if not self.workers:
                self._over(Outcome.FINISHED, wall_s, exit_code=0)
        elif code < 0:  # somebody or the machine killed it
            self.broken = self.broken or worker.phase is WorkerPhase.MEMBER
            self._fail("infra", f"{worker.id} was ended by signal {-code}", code, wall_s)
        elif code == LEFT_ON_ORDER:
            self.broken = True
            self._fail("infra", f"{worker.id} left without an order", code, wall_s)
        else:
            self.broken = True
            self._fail("user", error or f"{worker.id} ended with exit code {code}", code, wall_s)

    def _fail(self, fault: str, why: str, code: int | None, wall_s: float) -> None:
        """Count it; start again what is missing, or give up."""
        self.failures[fault] += 1
        limit = self.spec.retries.user if fault == "user" else self.spec.retries.infra
        hopeless = fault == "user" and self.spec.sdk and self.step == 0  # it would fail again before its first step
        if hopeless or (limit is not None and self.failures[fault] > limit):
            self._over(Outcome.FAILED, wall_s, why=why, exit_code=code)
            return
        self.news.append(
            GroupNews(outcome=Outcome.RESTARTED, generation=self.generation, why=why, exit_code=code),
        )
        self.round += 1
        if fault == "user" or code is None:  # what hangs or is wrong in one is wrong in all: start all anew
            self._end_all(0.0, wall_s)
        self.broken = True
        self._enter(_State.RESTING, wall_s)
        if fault == "infra" and code is not None:
            self._launch_missing(wall_s)  # survivors keep the state: no pause
            self._enter(_State.GATHERING, wall_s)
            self._form_if_ready(wall_s)

    def _rest_s(self) -> float:
        return min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2.0 ** (self.failures.total() - 1))

    def _over(self, outcome: Outcome, wall_s: float, *, why: str = "", exit_code: int | None = None) -> None:
        self._enter(_State.OVER, wall_s)
        for worker in list(self.workers.values()):
            self._end(worker, 5.0 if outcome is Outcome.FINISHED else 0.0, wall_s)
        self.news.append(GroupNews(outcome=outcome, generation=self.generation, why=why, exit_code=exit_code))

    def _stopped_if_empty(self) -> None:
        if self._state is _State.STOPPING and not self.workers:
            self._state = _State.IDLE
            self.broken = False
            self._saver = ""
            if self._resumable:
                self.news.append(GroupNews(outcome=Outcome.STOPPED, generation=self.generation))

    # ------------------------------------------------------------------ small things

    def _members_complete(self) -> bool:
        return len(self._in(WorkerPhase.MEMBER)) == sum(gpus for _, gpus in self._placement)

    def _in(self, phase: WorkerPhase) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.phase is phase]

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
        self._state, self._since_s = state, wall_s


def replace_id(leading: wire.Leading, worker_id: str) -> wire.Meet:
    """The leader's address, for another member."""
    return wire.Meet(worker_id=worker_id, generation=leading.generation, host=leading.host, port=leading.port)


def _slots(placement: Placement) -> Iterator[tuple[str, int, int]]:
    """(node, local rank, node rank) by rank."""
    for node_rank, (node_id, gpus) in enumerate(placement):
        for local_rank in range(gpus):
            yield node_id, local_rank, node_rank


def _split(workers: list[Worker], wanted: Counter[str]) -> tuple[list[Worker], list[Worker]]:
    """Those that fill the placement, members first, and the rest."""
    room = Counter(wanted)
    staying, leaving = [], []
    for worker in sorted(workers, key=lambda w: (w.phase is not WorkerPhase.MEMBER, w.rank)):
        if room[worker.node_id] > 0:
            room[worker.node_id] -= 1
            staying.append(worker)
        else:
            leaving.append(worker)
    return staying, leaving
