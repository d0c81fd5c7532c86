"""The common base of both machines: the order that is followed, the workers, and the text of a failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto

from sublet.domain.shape import Grid, Placement
from sublet.domain.shards import ranges_for
from sublet.domain.units import GIB
from sublet.runtime.group.failures import (
    Failure,
    Fault,
    Patience,
    WorkerCounts,
    fault_of,
    how_it_ended,
    narrow_placement,
)
from sublet.runtime.group.places import Form, Places
from sublet.runtime.group.protocol import GroupNews, Outcome
from sublet.runtime.group.states import JUDGE_S, LEAVE_S
from sublet.runtime.group.workers import Census, Roster, Round, Worker, WorkerPhase, split_by_room, start_order
from sublet.runtime.jobs.bounds import Shards
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import EXIT_LEFT, Ready

ROOM = 0.9  # of a device, for state: what is computed with it needs some too
LAST_GRACE_S = 5.0  # wall, at most, for workers that have nothing to save any more


class Ranging:
    """The ranges of one group.

    `auto` is decided by the first session that is ready, and stays: all members must be alike.
    """

    def __init__(self, asked: Shards) -> None:
        self.on = asked is Shards.ON
        self._asked, self._decided = asked, asked is not Shards.AUTO

    def hear(self, message: Ready, workers: int) -> None:
        """A session is ready, in a group of so many."""
        if self._decided:
            return
        self._decided = True
        room = message.device_bytes * ROOM
        whole = message.weight_bytes + message.moment_bytes
        cut = message.weight_bytes + message.moment_bytes / ranges_for(workers)
        self.on = message.ranges and cut < whole and cut <= room < whole

    def refuses(self, message: Ready) -> str:
        """Why this session cannot train at all, in words; "" = it can."""
        if self._asked is Shards.ON and not message.ranges:
            why = "its session cannot have its optimizer's state in ranges; next: train it without stages, or install "
            return why + "this sublet where the script runs"
        if 0 < message.device_bytes < message.weight_bytes:
            needs, has = message.weight_bytes / GIB, message.device_bytes / GIB
            return (
                f"weights and gradients alone take {needs:.1f} GiB, and its device has {has:.1f}, which no number of "
                "workers mends; next: cut the model into stages (parallel.stages), or ask for a larger accelerator"
            )
        return ""


class Verdict(Enum):
    """The consequence of a failure."""

    RETRY = auto()
    NARROW = auto()  # with fewer workers: the placement is that of the last worker count that worked
    GIVE_UP = auto()


class GroupCore(ABC):
    """The part of a group that does not depend on how its workers meet."""

    def __init__(
        self,
        job_id: str,
        spec: JobSpec,
        *,
        log_of: Callable[[str], str],
        env: Callable[[], dict[str, str]],
        host_of: Callable[[str], str] = lambda _: "",
        era: int = 0,  # of this controller
    ) -> None:
        self.job_id, self.spec = job_id, spec
        self._each = spec.per_node or 1  # GPUs of one process
        self.news: list[GroupNews] = []
        self.generation = 0
        self.round = Round()
        self.broken = False
        self.step, self.done = 0, 0.0
        self.work: float | None = None
        self.joined: wire.Joined | None = None
        self.stepped: wire.Stepped | None = None
        self.failures = Counter[str]()
        self.patience, self.before = Patience(), Census()
        self.finished = self.barred = False
        self._roster = Roster()
        self.workers = self._roster.workers
        self._placement: Placement = ()
        self._nodes: set[str] = set()  # that the kernel counts as ours: of the last order, and until it is answered
        self._batch, self._era = 0, era
        self._log_of, self._env, self._host_of = log_of, env, host_of
        self._launched = 0  # workers
        self._went: dict[str, Round] = {}  # workers that ended by themselves, lately; judging them begins a new round
        self.widths = WorkerCounts()
        self.places = Places(spec.cut, spec.stages)
        self.ranging = Ranging(spec.shards if spec.sdk and not spec.cut else Shards.OFF)
        self._ends_before: list[wire.WorkerDown] | None = None  # of workers, until all agents have come; then None
        self._came_back = False  # of an earlier controller, and none was started since

    @property
    def outbox(self) -> list[tuple[str, wire.ToAgent]]:
        """See the protocol."""
        return self._roster.outbox

    @property
    def size(self) -> int:
        """See the protocol."""
        return len(self._roster.members) * self._each

    @property
    def census(self) -> Census:
        """See the protocol."""
        if self._ends_before is not None:
            return self.before  # nothing was dealt with since
        staying = {worker.id for worker in self._roster.staying}
        unjudged = {worker_id for worker_id, round_ in self._went.items() if round_ == self.round}
        return Census(
            first_after=(self.round.number, self._launched),
            staying=frozenset(staying | unjudged),
            ranges=self.ranging.on or self.before.ranges,  # as the controller before us decided
            places={worker.id: (*worker.place, *worker.keeps) for worker in self._roster.members if worker.place},
            formed=self.places.formed,
        )

    def end_now(self, wall_s: float) -> None:
        """See the protocol."""
        self._roster.end_all(0.0, wall_s)

    def prepare(self, doomed: Collection[str], grid: Grid | None) -> None:
        """See the protocol: where every worker has all of the state, there is nothing to keep."""
        del doomed, grid

    def node_released(self, node_id: str, wall_s: float) -> None:
        """See the protocol."""
        for worker in self._roster.on_node(node_id):
            code = EXIT_LEFT if worker.phase is WorkerPhase.LEAVING else -9
            self._lose_worker(worker, code, "", wall_s)

    @abstractmethod
    def _lose_worker(self, worker: Worker, code: int, error: str, wall_s: float) -> None:
        """Its process has ended."""

    def _see_off(self, worker: Worker) -> None:
        """Its process has ended, by itself unless it was told to."""
        del self.workers[worker.id]
        if worker.phase is not WorkerPhase.LEAVING:
            self._went = {other: round_ for other, round_ in self._went.items() if round_ == self.round}
            self._went[worker.id] = self.round

    # ------------------------------------------------------------------ the order

    @property
    def _wanted(self) -> int:
        """Workers of the placement, one for each of its GPUs."""
        return sum(gpus for _, gpus in self._placement)

    @property
    def _seats(self) -> Placement:
        """How many processes are on which node: one for each GPU, or one for all GPUs of what the job calls a node."""
        return tuple((node_id, gpus // self._each) for node_id, gpus in self._placement)

    def _take_order(self, generation: int, placement: Placement, batch: int) -> None:
        self.generation, self._placement, self._batch = generation, placement, batch
        self._nodes |= {node_id for node_id, _ in placement}

    def _next_round(self) -> None:
        """The next round, of a new order; a new round under the same one is `self.round.after()`."""
        self.round = max(self.round.after(), Round(self._era, self.generation))

    def _answer_move(self) -> None:
        self._nodes = {node_id for node_id, _ in self._placement}
        self.news.append(GroupNews(outcome=Outcome.MOVED, generation=self.generation))

    def _is_end_before(self, message: wire.FromWorkerMessage | wire.AboutWorker) -> bool:
        """A worker ended while no controller was there, or before all agents have come: that is looked at then."""
        if self._ends_before is None or not isinstance(message, wire.WorkerDown):
            return False
        if not self.before.has_counted(message.worker_id):
            self._ends_before.append(message)
        self.workers.pop(message.worker_id, None)
        return True

    def _begin_adoption(
        self, generation: int, placement: Placement, batch: int, form: Form | None, *, trains: bool
    ) -> None:
        self.generation, self._placement, self._batch = generation, placement, batch
        if self.before.formed is not None and not self.places.cut:
            self.places.become_copies(self._wanted // self._each)
        self.places.take(form, self._wanted // self._each)
        self.places.formed = self.before.formed or self.places.grid
        self._nodes = {node_id for node_id, _ in placement}
        self._next_round()
        self._ends_before = []
        self._came_back = True
        self.broken = not trains

    def _rests_on(self, wall_s: float) -> bool:
        """No worker is here, and the pause that an earlier controller began is not over: this one begins no other."""
        rests = self._came_back and not self.workers and self.patience.rests(self.failures.total(), wall_s)
        self._came_back = False
        return rests

    # ------------------------------------------------------------------ nodes and workers

    def _meet_agent(self, node_id: str, worker_ids: Iterable[str], wall_s: float, *, wanted: bool) -> None:
        """An agent has these workers; one that was not known is a member, if it is `wanted` and on a node of ours."""
        for worker_id in worker_ids:
            if worker_id not in self.workers:
                worker = Worker(worker_id, node_id, WorkerPhase.MEMBER, wall_s, met=True, adopted=True)
                self.workers[worker_id] = worker
                if (known := self.before.places.get(worker_id)) is not None:
                    worker.place, worker.keeps = (known[0], known[1]), known[2:]
                elif self.before.places:  # it was spare
                    worker.phase, worker.adopted = WorkerPhase.READY, False
                if not wanted or node_id not in self._nodes:
                    self._roster.end(worker, 0.0, wall_s)
        for worker in self._roster.on_node(node_id):
            if worker.id in worker_ids:
                worker.missing_s = None
            elif worker.phase is WorkerPhase.LAUNCHED and worker.start is not None:
                self._roster.send(worker, worker.start)  # it may not have heard it
            else:
                worker.missing_s = wall_s  # how it ended comes next, if the agent knows

    def _forget_node(self, node_id: str) -> bool:
        """The node is gone with all on it; True if the kernel counted it as ours."""
        ours = node_id in self._nodes
        for worker in self._roster.on_node(node_id):
            del self.workers[worker.id]
            self.broken = self.broken or worker.phase is WorkerPhase.MEMBER
        self._placement = tuple(part for part in self._placement if part[0] != node_id)
        self._nodes.discard(node_id)
        return ours

    def _expire_workers(self, wall_s: float) -> None:
        """Workers of which nothing is known are gone; those that do not leave are ended."""
        patience_s = max(self.spec.grace_s, LEAVE_S)
        for worker in list(self.workers.values()):
            if worker.missing_s is not None and wall_s - worker.missing_s > JUDGE_S:
                self._lose_worker(worker, -9, "", wall_s)
            elif worker.phase is WorkerPhase.LEAVING and wall_s - worker.since_s > patience_s:
                self._roster.end(worker, 0.0, wall_s)

    def _launch_missing(self, wall_s: float, *, address: tuple[str, int] | None = None, first: bool = False) -> None:
        """Start what the placement lacks (`first`: rank 0 alone) and end newcomers that it has no room for.

        Members that it has no room for train on until the new group forms. The others meet rank 0 at `address`.
        """
        staying, leaving = split_by_room(self._roster.staying, self._seats)
        for worker in leaving:
            if worker.phase is not WorkerPhase.MEMBER:
                self._roster.end(worker, 0.0, wall_s)
        have = Counter(worker.node_id for worker in staying)
        taken = {worker.rank for worker in self._roster.staying}
        free = (rank for rank in range(len(taken) + self._wanted) if rank not in taken)
        for node_id, processes in self._seats:
            for _ in range(processes - have[node_id]):
                if (rank := next(free)) == 0 or not first:
                    self._launch(node_id, rank, address if rank else None, wall_s)

    def _launch(self, node_id: str, rank: int, address: tuple[str, int] | None, wall_s: float) -> None:
        if self.barred:
            return
        name = f"{self.job_id}.{self.round.number}.{self._launched}"
        self._launched += 1
        worker = self.workers[name] = Worker(name, node_id, since_s=wall_s, born_s=wall_s, rank=rank)
        worker.start = start_order(
            worker.id,
            self.job_id,
            self.spec,
            rank=rank,
            placement=self._seats,
            hosts=[self._host_of(node_id) for node_id, _ in self._placement],
            ours={**self._env(), "SUBLET_GENERATION": str(self.round.number)},
            meeting=address,
            restarts=self.failures.total(),
            log=self._log_of(worker.id),
        )
        self._roster.send(worker, worker.start)

    # ------------------------------------------------------------------ failures

    def _judge(self, failure: Failure, wall_s: float, *, script: bool, hopeless: bool) -> Verdict:
        """Count it and tell of it; what follows.

        `script`: it may be what the script does at this worker count. `hopeless`: it would fail in the same way again.
        """
        crashed = script and failure.fault is Fault.USER and failure.code != 0
        cut = self.places.grid is not None  # another worker count is another grid, and for a plan to choose
        if (failure.unfit or crashed) and not cut:
            width = self.widths.back_from(self._wanted, self.spec, crashed=crashed)
            if width is not None:
                self._narrow(width, failure)
                return Verdict.NARROW
        spent = self.patience.is_spent(failure, self.failures, self.spec.retries, wall_s)
        if (
            spent
            and failure.unfit
            and not (self.spec.per_node or cut)
            and (width := self.widths.last_resort(self._wanted, self.spec)) is not None
        ):
            self.patience.forgive(1)  # this one, too: it is the worker count's
            self._narrow(width, failure)
            return Verdict.NARROW
        if spent or (hopeless and failure.fault is Fault.USER):
            return Verdict.GIVE_UP
        self._tell(Outcome.RESTARTED, failure)
        return Verdict.RETRY

    def _narrow(self, width: int, failure: Failure) -> None:
        """The worker count of the order does not work: go on with the last that did, and let the kernel know."""
        self._tell(Outcome.NARROWED, failure, width=self._wanted, back_to=width)
        here = self._roster.in_phase(WorkerPhase.READY, WorkerPhase.MEMBER)
        self._placement = narrow_placement(self._placement, width, here)
        self.patience.forgive(self.widths.failures - 1)  # the tries before this one
        self.widths.begin_order()

    def _tell(self, outcome: Outcome, failure: Failure, *, width: int = 0, back_to: int = 0) -> None:
        told = GroupNews(
            outcome=outcome,
            generation=self.generation,
            why=failure.why,
            exit_code=failure.code,
            width=width,
            back_to=back_to,
            silent_s=0.0 if width else failure.silent_s,
        )
        self.news.append(told)


def find_crash(ends: Iterable[wire.WorkerDown]) -> Failure | None:
    """The first of these ends that was the script's own failure."""
    for down in ends:
        if down.code != 0 and fault_of(down.code) is Fault.USER:
            why = down.error or how_it_ended(down.worker_id, down.code)
            return Failure(fault=Fault.USER, why=why, code=down.code)
    return None
