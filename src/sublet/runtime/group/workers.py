"""The workers of a group as data: their places, their ranks, and those that stay when the group changes.

The era of a controller is the time at which it began, and is above that of every controller that its store knows. So
the rounds of a store that is older than its use, a backup that was put back, are above all of those that it has
forgotten. Neither workers that still run nor the fence of a checkpoint meet a number again.

>>> Round(era=3, generation=2).number
1000030000020000
>>> Round.from_number(1000030000020000).after()
Round(era=3, generation=2, round=1)
>>> Round.from_number(2000001000)
Round(era=0, generation=2, round=1000)

>>> before = Census(first_after=(7, 3), staying=frozenset({"j-1.7.2"}))
>>> [before.has_counted(f"j-1.{worker}") for worker in ("6.0", "7.1", "7.2", "7.3", "8.4")]
[True, True, False, False, False]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from sublet.domain.seats import Place
from sublet.domain.shape import Grid, Placement
from sublet.domain.shards import ranges_for
from sublet.runtime.jobs.spec import JobSpec
from sublet.wire import messages as wire
from sublet.wire.messages import SHARDS, StartWorker

# A value in the job file, or on the node, is left as it is.
USERS_FIRST = frozenset({"WANDB_RUN_ID", "WANDB_RESUME", "TORCH_CPP_LOG_LEVEL"})


def start_order(  # noqa: PLR0913 - each is a fact about this worker
    worker_id: str,
    job_id: str,
    spec: JobSpec,
    *,
    rank: int,
    placement: Placement,
    hosts: Sequence[str],
    ours: Mapping[str, str],
    meeting: tuple[str, int] | None,
    restarts: int,
    log: str,
) -> StartWorker:
    """`ours` is what the controller has to say, beside ranks; a script without the SDK meets at `meeting`.

    `placement` counts processes, and `hosts` are the addresses of its nodes.

    Its rank 0 is started before that is known: the agent there finds a free port, and tells.

    One that never has more than one worker, and was not submitted with `torchrun`, is as if started by hand: many
    (nanoGPT, say) train distributed as soon as they find RANK. Any other joins its group at each worker count, at one
    too.
    """
    users = {**spec.env, **spec.secrets}
    env = {name: value for name, value in ours.items() if name not in USERS_FIRST}
    world = sum(gpus for _, gpus in placement)
    joins = spec.torchrun or max(world, spec.max_workers) > 1
    distributed, local_world = joins and not spec.sdk and not spec.per_node, 1
    if spec.sdk:  # as at the start: its session knows better from then on. It sees one GPU, which is number 0 to it
        env |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    elif spec.per_node:
        env |= _node_env(job_id, spec, rank, placement, hosts)
    elif distributed:
        ranks = _torchrun_env(job_id, rank, placement, restarts)
        local_world = int(ranks["LOCAL_WORLD_SIZE"])
        env |= ranks | ({"MASTER_ADDR": meeting[0], "MASTER_PORT": str(meeting[1])} if meeting else {})
    return StartWorker(
        worker_id=worker_id,
        job_id=job_id,
        argv=spec.argv,
        env={**users, **env},
        defaults={name: value for name, value in ours.items() if name in USERS_FIRST and name not in users},
        cwd=spec.cwd,
        python=spec.python,
        log=log,
        gpus=spec.per_node or local_world,
        together=f"{job_id} {ours.get('SUBLET_GENERATION', '')}" if distributed else "",
        offers=distributed and rank == 0,
    )


def _node_env(job_id: str, spec: JobSpec, rank: int, placement: Placement, hosts: Sequence[str]) -> dict[str, str]:
    """Variables as SkyPilot sets them, for a command that is started once per node and starts the rest itself.

    Two of its nodes may be on one machine: each has its own GPUs there.
    """
    addresses = [host for host, (_, count) in zip(hosts, placement, strict=True) for _ in range(count)]
    node = {
        "NODE_RANK": str(rank),
        "NODE_IPS": "\n".join(addresses),
        "NUM_GPUS_PER_NODE": str(spec.per_node if spec.accelerators else 0),
    }
    return {
        **{f"SKYPILOT_{name}": text for name, text in node.items()},
        **{f"SKYPILOT_SETUP_{name}": text for name, text in node.items()},
        "SKYPILOT_NUM_NODES": str(len(addresses)),
        "SKYPILOT_TASK_ID": f"sublet-{job_id}",
    }


def _torchrun_env(job_id: str, rank: int, placement: Placement, restarts: int) -> dict[str, str]:
    """Variables as torchrun sets them, for a script that knows nothing of us."""
    slots = [(local, at) for at, (_, gpus) in enumerate(placement) for local in range(gpus)]
    local_rank, node_rank = slots[rank]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(slots)),
        "LOCAL_WORLD_SIZE": str(placement[node_rank][1]),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(placement)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(len(slots)),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",
        "TORCHELASTIC_RUN_ID": job_id,
    }


ROUNDS = 10_000  # under one order, of one controller; more count as those of a further order
GENERATIONS = 1_000_000  # orders to one job
OLD_ROUNDS = 1_000_000_000  # under one order, before there were eras: controllers counted by thousands in them
FIRST = OLD_ROUNDS * GENERATIONS  # number of the first round of an era; below it are those of before
BEGIN_S = 1_735_689_600  # of eras: 2025-01-01; from then on, 64 bits hold the numbers of 29 years


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The workers of one job when it was last written down."""

    first_after: tuple[int, int] = (0, 0)  # round and number of the next to be started
    staying: frozenset[str] = frozenset()  # those that ran, and were not told to go
    ranges: bool = False  # the optimizer's state was in ranges
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # in a grid: copy, part, and what one kept
    formed: Grid | None = None  # the grid that places are of, which may not be the one that was ordered last

    def has_counted(self, worker_id: str) -> bool:
        """Its end was dealt with, or it was told to go: that it has ended is no news."""
        round_, number = worker_id.split(".")[-2:]
        return worker_id not in self.staying and (int(round_), int(number)) < self.first_after

    def facts(self) -> dict[str, Any]:
        """Facts that the next controller must find again."""
        facts: dict[str, Any] = {"first_after": list(self.first_after), "staying": sorted(self.staying)}
        facts |= {"ranges": True} if self.ranges else {}
        if self.places:
            facts["places"] = {name: list(place) for name, place in self.places.items()}
        return facts | ({"formed": [self.formed.copies, self.formed.parts]} if self.formed is not None else {})

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Census:
        """The inverse of `facts`; without any, every end is news."""
        round_, number = facts.get("first_after", (0, 0))
        places = {name: tuple(place) for name, place in facts.get("places", {}).items()}
        formed = Grid(*facts["formed"]) if "formed" in facts else None
        staying, ranges = frozenset(facts.get("staying", ())), bool(facts.get("ranges"))
        return cls(first_after=(round_, number), staying=staying, places=places, formed=formed, ranges=ranges)


class Round(NamedTuple):
    """A restart of workers under one order of the kernel is a new round; later ones are greater."""

    era: int = 0  # of the controller; 0 = before there were any
    generation: int = 0  # of the kernel's order
    round: int = 0  # agreements before this one, under this order and this controller

    @property
    def number(self) -> int:
        """As it goes over the wire (there it is called `generation`) and into the store."""
        if not self.era:
            return self.generation * OLD_ROUNDS + self.round
        return FIRST + (self.era * GENERATIONS + self.generation) * ROUNDS + self.round

    @classmethod
    def from_number(cls, number: int) -> Round:
        """The inverse of `number`."""
        if number < FIRST:
            return cls(0, *divmod(number, OLD_ROUNDS))
        rest, round_ = divmod(number - FIRST, ROUNDS)
        return cls(*divmod(rest, GENERATIONS), round_)

    def after(self) -> Round:
        """The next agreement under the same order."""
        return Round.from_number(self.number + 1)


def era_after(last: int, unix_s: float, passed_s: float = 0.0) -> int:
    """The era of a controller that begins now: above the last known one, also if the clock was set back.

    `passed_s` have passed since then at least, whatever the clock says: a later start on the same store, put back, is
    above any earlier one.
    """
    return max(last + 1 + int(passed_s), int(unix_s) - BEGIN_S)


class WorkerPhase(StrEnum):
    """The phase of a worker."""

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
    born_s: float = float("-inf")  # wall, when its start was ordered; long ago for one that was there before us
    rank: int = -1
    step: int = 0
    met: bool = False  # it trains in a group, or did before this controller was there; not since it gave its place up
    left: bool = False  # it said Left
    saves: bool = True  # where it stands when it leaves is where the job does; not if it leaves saving to another
    short: bool = False  # its process ends because a step did not fit, and the next will take fewer samples at a time
    adopted: bool = False  # it was there before this controller: that it is a member is a guess
    missing_s: float | None = None  # wall, since when its agent knows nothing of it
    start: wire.StartWorker | None = None  # said again to an agent that may not have heard it
    quiet_s: float = 0.0  # wall: how long it neither printed nor used a processor, when its agent last looked
    seen_s: float | None = None  # wall, when that was
    alone_s: float | None = None  # wall, since when looks find it at work for itself; None = the last one did not
    busy_s: float = float("-inf")  # wall, when it last said that it is in its script's own code
    place: Place | None = None  # in the grid that it was last told of
    keeps: tuple[int, ...] = ()  # parts of it that it holds besides its own
    gives: bool = False  # it has none in the new grid, and takes part in handing over
    gpu: wire.GpuSeen | None = None  # its GPUs, when its agent last looked
    version: int | None = None  # of what it says to others of its grid; None = it was ready before this controller
    meets_to_save: bool = False  # it was told to leave a grid: all such workers save together

    def note_seen(self, seen: wire.WorkerSeen, wall_s: float) -> None:
        """Its agent has looked at it."""
        self.quiet_s, self.seen_s = seen.quiet_s, wall_s
        self.alone_s = (wall_s if self.alone_s is None else self.alone_s) if seen.alone else None

    def note_preparing(self, wall_s: float) -> None:
        """Its node is busy with what it needs: the time that it has to start, or to meet the others, begins anew.

        So does the time that it has to leave: its node is busy with what it has saved.
        """
        self.busy_s = wall_s
        if self.phase in (WorkerPhase.LAUNCHED, WorkerPhase.LEAVING):
            self.since_s = wall_s


class Roster:
    """The workers of one group, and the messages to them that are not sent yet."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.outbox: list[tuple[str, wire.ToAgent]] = []  # (node, message)

    def in_phase(self, *phases: WorkerPhase) -> list[Worker]:
        """Those that stand there."""
        return [worker for worker in self.workers.values() if worker.phase in phases]

    @property
    def members(self) -> list[Worker]:
        """Those that train, or would if none were gone."""
        return self.in_phase(WorkerPhase.MEMBER)

    @property
    def staying(self) -> list[Worker]:
        """Those that were not told to go."""
        return self.in_phase(WorkerPhase.LAUNCHED, WorkerPhase.READY, WorkerPhase.MEMBER)

    def on_node(self, node_id: str) -> list[Worker]:
        """Those on this node."""
        return [worker for worker in self.workers.values() if worker.node_id == node_id]

    def send(self, worker: Worker, message: wire.ToAgent) -> None:
        """Leave a message for its agent."""
        self.outbox.append((worker.node_id, message))

    def enter(self, worker: Worker, phase: WorkerPhase, wall_s: float) -> None:
        """It stands there from now on."""
        worker.phase, worker.since_s = phase, wall_s

    def end(self, worker: Worker, grace_s: float, wall_s: float) -> None:
        """Its process is ended by its agent."""
        self.send(worker, wire.EndWorker(worker_id=worker.id, grace_s=grace_s))
        self.enter(worker, WorkerPhase.LEAVING, wall_s)

    def end_all(self, grace_s: float, wall_s: float) -> None:
        """So are all."""
        for worker in self.workers.values():
            self.end(worker, grace_s, wall_s)

    def tell_to_leave(self, members: Iterable[Worker], generation: int, wall_s: float, *, broken: bool) -> str:
        """They end by themselves at the next step, and rank 0 saves; in a broken group its identity is unknown.

        There the one with the most steps does: the answer is its id, "" for rank 0.
        """
        members = sorted(members, key=lambda w: (-w.step, w.rank))
        for worker in members:
            worker.saves = not broken or worker is members[0]
            leave = wire.Leave(worker_id=worker.id, generation=generation, save=worker.saves, broken=broken)
            self.send(worker, leave)
            self.enter(worker, WorkerPhase.LEAVING, wall_s)
        return members[0].id if broken else ""


def was_started_under(worker: Worker, generation: int) -> bool:
    """By this order of the kernel: its name, JOB.ROUND.NUMBER, says so, under any controller."""
    number = worker.id.split(".")[-2:][0]
    return number.isdecimal() and Round.from_number(int(number)).generation == generation


def split_by_room(workers: Iterable[Worker], placement: Placement) -> tuple[list[Worker], list[Worker]]:
    """Those that fill the placement, the furthest on first, and the rest."""
    room = Counter(dict(placement))
    furthest = {WorkerPhase.MEMBER: 0, WorkerPhase.READY: 1}
    staying, leaving = [], []
    for worker in sorted(workers, key=lambda w: (furthest.get(w.phase, 2), w.rank)):
        if room[worker.node_id] > 0:
            room[worker.node_id] -= 1
            staying.append(worker)
        else:
            leaving.append(worker)
    return staying, leaving


def regroup_orders(
    staying: Iterable[Worker],
    generation: int,
    batch: int,
    *,
    broken: bool,
    micro_batch: int = 0,
    in_ranges: bool = False,
) -> Iterator[wire.Regroup]:
    """An order for each; it takes its new rank here. Workers with steps come first, so that rank 0 has some."""
    members = sorted(staying, key=lambda w: (w.phase is not WorkerPhase.MEMBER, -w.step, w.rank))
    nodes = list(dict.fromkeys(worker.node_id for worker in members))
    on_node = Counter(worker.node_id for worker in members)
    seen = Counter[str]()
    for rank, worker in enumerate(members):
        worker.rank = rank
        yield wire.Regroup(
            worker_id=worker.id,
            generation=generation,
            rank=rank,
            world=len(members),
            local_rank=seen[worker.node_id],
            local_world=on_node[worker.node_id],
            node_rank=nodes.index(worker.node_id),
            nodes=len(nodes),
            batch=batch,
            broken=broken,
            micro_batch=micro_batch,
            cut=SHARDS if in_ranges else "",
            parts=ranges_for(len(members)) if in_ranges else 1,
        )
        seen[worker.node_id] += 1
