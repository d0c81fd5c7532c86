"""Every message between the controller, the agent of a node and a worker on it. Closed unions, versioned.

A *worker* is one training process, a *member* a worker that belongs to the group of a generation. The controller alone
decides the members; `generation` counts its decisions, and a message of an older one is late news.

    controller -> agent -> worker    Regroup, Meet, Keep, Leave, SaveNow, Spent; of the agent's own: Brought
    controller -> agent              Welcome, StartWorker, EndWorker, RenewLease, Warn, Dismiss
    worker -> agent -> controller    Ready, Leading, Joined, Stepped, Busy, Broke, Left, Saved, SaveFailed, Damaged,
                                     ShortOfMemory, Finished
    agent -> controller              Hello, Ping, Noticed, WorkerUp, WorkerSeen, GpuSeen, WorkerDown,
                                     FromWorker (its words)

Both sides say something every few seconds (RenewLease, Ping); a line that is silent for three times as long is lost,
whatever the network says, and the agent dials again. Of groups they speak in grids, of files and logs in travel, of
checkpoints in saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.wire.grids import Broke, Joined, Keep, Leading, Leave, Left, Meet, Ready, Regroup, Stepped
from sublet.wire.saves import Brought, Carried, Damaged, Newest, Offered, Saved, SaveFailed, Uncarried, Wants
from sublet.wire.travel import Kept, Lacks, Part, Preparing, Printed, Travel

__all__ = [
    "EXIT_LEFT",
    "EXIT_LOST",
    "EXIT_MEMORY",
    "OLDEST_VERSION",
    "WIRE_VERSION",
    "AboutWorker",
    "Broke",
    "Busy",
    "Damaged",
    "Dismiss",
    "EndWorker",
    "Finished",
    "FromWorker",
    "FromWorkerMessage",
    "GpuSeen",
    "Hello",
    "Joined",
    "Keep",
    "Leading",
    "Leave",
    "Left",
    "Meet",
    "Noticed",
    "Ping",
    "Ready",
    "Regroup",
    "RenewLease",
    "SaveFailed",
    "SaveNow",
    "Saved",
    "ShortOfMemory",
    "Spent",
    "StartWorker",
    "Stepped",
    "ToAgent",
    "ToController",
    "ToWorker",
    "Travelling",
    "Warn",
    "Welcome",
    "WorkerDown",
    "WorkerSeen",
    "WorkerUp",
]

EXIT_LEFT = 83  # it left its group as it was told to
EXIT_MEMORY = 84  # a step of it did not fit into memory: it is started again, and takes fewer samples at a time
EXIT_LOST = 75  # without word any more what to do (sysexits.h: EX_TEMPFAIL)


WIRE_VERSION = 2  # with 2 grids came; a peer of 1 is understood, and trains without
OLDEST_VERSION = 1

# ---------------------------------------------------------------------------------------- to a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveNow:
    """Write a checkpoint at the next step boundary."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost of the job so far, for the log of a worker whose `Stepped` says that it keeps one."""

    worker_id: str
    usd: float
    resizes: int
    preemptions: int


ToWorker = Regroup | Meet | Keep | Leave | SaveNow | Spent | Brought

# ---------------------------------------------------------------------------------------- to an agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The controller knows you. Without a RenewLease for `lease_s` seconds, end your workers and yourself."""

    node_id: str
    lease_s: float
    frames: bool = False  # the controller reads parts as raw bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start a process: `argv` as given; a Python script is run in a process that has torch imported already.

    `env` is added to the agent's own, `defaults` where neither has a value; the worker finds its line to the agent in
    the descriptor SUBLET_CONTROL_FD.
    """

    worker_id: str
    job_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    python: str = ""  # the interpreter that `python` is, if it is there; "" = the agent's
    log: str = ""  # file to append standard output and error to
    gpus: int = 1  # that it may see
    together: str = ""  # workers of one name see the same GPUs; "" = this one has its own
    offers: bool = False  # find a free port where others meet it, set MASTER_ADDR and MASTER_PORT, tell them
    watch: bool = False  # it has no session: say WorkerSeen now and then
    reads: bool = False  # ... and whether it reads what an earlier start saved
    began_ago_s: float | None = None  # wall, since the first start; what was written since is its own; None = unknown
    note: str = ""  # a line for its log, before it begins
    travel: Travel | None = None  # what its node must have before


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWorker:
    """SIGTERM, and SIGKILL after `grace_s`; the answer is WorkerDown."""

    worker_id: str
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewLease:
    """The controller lives: the lease counts from now again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """The node will be taken in `in_s` seconds: write it to the notice file of every worker."""

    in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """End your workers and yourself now."""


ToAgent = (
    Welcome | StartWorker | EndWorker | RenewLease | Warn | Dismiss | ToWorker | Part | Kept | Lacks | Carried | Newest
)

# ---------------------------------------------------------------------------------------- from a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """It lives, in the script's own code (an evaluation, say) and not in ours; said now and then while that lasts."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortOfMemory:
    """`samples` at a time did not fit into its memory: `micro_batch` from now on. All members drop the step.

    If `ends`, that was in the script's own code: the process ends (EXIT_MEMORY) and is to be started again. In a grid
    `micro_batch` is 0: its part does not fit, and is to be smaller.
    """

    worker_id: str
    generation: int
    step: int
    samples: int
    micro_batch: int
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All the work is done and the last checkpoint committed."""

    worker_id: str
    step: int
    done: float
    loss: float | None = None


FromWorkerMessage = (
    Ready | Leading | Joined | Stepped | Busy | Broke | Left | Saved | SaveFailed | Damaged | ShortOfMemory | Finished
)

# ---------------------------------------------------------------------------------------- from an agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The agent of a node comes, or comes back; `workers` maps those that run to the job of each."""

    node_id: str
    token: str
    pid: int
    version: int = WIRE_VERSION
    host: str = "127.0.0.1"
    workers: Mapping[str, str] = field(default_factory=dict)
    pings: bool = False  # it says Ping every few seconds, so that its silence means something
    machine: str = ""  # the same for all agents of one machine and its network; "" = it does not say
    trouble: str = ""  # why it cannot serve, and goes
    frames: bool = False  # it reads parts as raw bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """The agent lives and its line carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """The cloud has told the node itself: it will be taken (`interruption`), or may be (`rebalance`)."""

    node_id: str
    in_s: float
    kind: str = "interruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUp:
    """The process runs; others meet it at `host` and `port`, if it was to offer that."""

    worker_id: str
    pid: int
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A look at a process that has no session to speak for itself, with all that it started."""

    worker_id: str
    quiet_s: float = 0.0  # wall, since anybody of it printed something or used a processor
    saved_ago_s: float | None = None  # wall, since it wrote below SUBLET_CHECKPOINT_DIR; None = it never did
    met: bool = False  # a worker on its node was seen at MASTER_PORT: its workers speak with one another
    loaded: str = ""  # it has read what was saved before: no | yes | unknown; "" = nothing was there, or not asked
    looked: bool = False  # at all that lies below its own directory
    wrote_ago_s: float | None = None  # wall, since it wrote there; None = in its life it was not seen to
    loaded_ago_s: float | None = None  # wall, since an earlier start wrote there what this one has read; None = nothing
    alone: bool = False  # it is one of several, has torch loaded, and no socket at which another could meet it


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """A look at the GPUs that a worker was given, said now and then where there are any that tell."""

    worker_id: str
    gpus: int
    busy: float  # 0 to 1, the mean of them: of the time, in which something ran there, this worker's or another's
    memory_bytes: int  # taken, of all of them
    memory_of_bytes: int  # that they have


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDown:
    """The process has ended: by itself with `code`, or by a signal (`code` is minus its number)."""

    worker_id: str
    code: int
    error: str = ""  # the last lines of what it printed, for a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FromWorker:
    """A worker's own words, passed on."""

    message: FromWorkerMessage


AboutWorker = Preparing | WorkerUp | WorkerSeen | WorkerDown
Travelling = Lacks | Part | Printed | Offered | Wants | Uncarried
ToController = Hello | Ping | Noticed | GpuSeen | AboutWorker | FromWorker | Travelling
