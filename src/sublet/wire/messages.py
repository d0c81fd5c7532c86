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
whatever the network says, and the agent dials again. Messages about files and checkpoints are in `files`.

A group is a *grid*: `copies` of a model, each cut into `parts`. One part is data parallel training, and what is said of
places is then left at its default. A worker has a *place* (copy, part), and may *keep* parts of others: it holds their
state too, and brings it up to date with every step. Old and new members *meet*, and hand over what each place needs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.wire.files import (
    Brought,
    Carried,
    Damaged,
    Kept,
    Lacks,
    Newest,
    Offered,
    Part,
    Preparing,
    Printed,
    Saved,
    SaveFailed,
    Travel,
    Uncarried,
    Wants,
)

__all__ = [
    "EXIT_LEFT",
    "EXIT_LOST",
    "EXIT_MEMORY",
    "FITS",
    "GRIDS_SINCE",
    "NO_PLACE",
    "OLDEST_VERSION",
    "PROFILED",
    "SESSION",
    "SHARDS",
    "STAGES",
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
    "Profile",
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
    "is_profiled",
]

PROFILED = "SUBLET_PROFILE_EVERY_S"  # a run that is only there to be measured: seconds between two reports
FITS = "SUBLET_SAMPLES_FIT"  # at a time on this kind of GPU, as an earlier run found out


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Means over the steps since the last one that was said; in a `Stepped` of rank 0, at most once a second.

    A step takes `step_s` from update to update. It is `pieces` micro-batches of about `samples`, each loaded and
    computed (forward and backward), then a wait for the gradients of others that backward did not hide, and the update.
    """

    step_s: float = 0.0
    pieces: int = 1
    samples: int = 1
    data_s: float = 0.0  # per micro-batch
    compute_s: float = 0.0  # per micro-batch
    wait_s: float = 0.0  # per step
    update_s: float = 0.0  # per step
    memory_bytes: int = 0  # most on the device at once, since the last; 0 = it cannot be told
    most_samples: int = 0  # at a time, as the script or its memory has it; 0 = all of its share
    noise_growth: float = 0.0  # of the logarithm of the gradient noise scale, per sample trained
    torch: str = ""  # its version
    device: str = ""  # what it computes on, as its maker calls it
    batch_initial: int = 0  # the learning rate is for this one; 0 = the batch is fixed
    batch_low: int = 0
    batch_high: int = 0


def is_profiled() -> bool:
    """Whether this process runs to be measured (`sublet profile`): it has no end, keeps nothing, and is thrown away."""
    return PROFILED in os.environ


GRIDS_SINCE = 2  # version of the wire: a peer of an older one trains data parallel, and nothing else
SESSION = 4  # version that a session says it speaks: one more where what workers of a grid say to one another changes
STAGES, SHARDS = "stages", "shards"  # ways to cut: at borders of blocks, or anywhere
NO_PLACE = -1  # of a worker that only keeps, or only gives

# ---------------------------------------------------------------------------------------- to a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """You are rank `rank` of `world` in generation `generation`.

    Survivors finish the step they are in and come; with `broken` the old group has lost a member, so they drop the step
    instead (its samples are trained again by the new group). Rank 0 opens the store and says Leading; the others wait
    for Meet. State goes from the member with the most steps to all with fewer.

    In a grid the rank is `copy * parts + part`; workers that only keep come behind, and have no place. All of the old
    and the new grid meet first, each as number `meeting` of `meets`: staying workers by their rank, then those that
    only give. A worker that does not stay (`rank` is -1) hands over, says Left and waits for its next order: Leave, or
    another Regroup, in which it is as one that has just come.
    """

    worker_id: str
    generation: int
    rank: int
    world: int
    local_rank: int = 0
    local_world: int = 1
    node_rank: int = 0
    nodes: int = 1
    batch: int = 0  # global batch that the plan chose; 0 = the script's own
    broken: bool = False
    micro_batch: int = 0  # most samples that a worker takes at a time, as more did not fit; 0 = as the script has it
    copy: int = NO_PLACE
    part: int = NO_PLACE
    copies: int = 0  # 0 = no grid: the script is not asked to cut anything
    parts: int = 1
    cut: str = ""  # STAGES; SHARDS: `parts` ranges of the optimizer's state, rank r has number r % parts; "" = none
    ends: tuple[int, ...] = ()  # part p has the blocks from ends[p - 1] up to ends[p]; () = as even as there are
    keeps: tuple[int, ...] = ()  # parts whose state it holds besides its own
    meeting: int = NO_PLACE
    meets: int = 0
    stays: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """The store of generation `generation` is open at this address."""

    worker_id: str
    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """From the next boundary on keep these parts too, of the grid of `generation`: where a loss is known to come."""

    worker_id: str
    generation: int
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Finish the step you are in, save if `save` (the last of the group does it), say Left, and exit.

    In a grid no worker can save alone: all that leave meet first, each as number `meeting` of `meets`, and number 0
    opens the store and says Leading.
    """

    worker_id: str
    generation: int
    save: bool = False
    broken: bool = False  # as in Regroup
    meeting: int = NO_PLACE
    meets: int = 0  # 0 = no meeting


# ---------------------------------------------------------------------------------------- from a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The script has opened its session and waits for a group."""

    worker_id: str
    version: int = 1  # of the wire that it speaks, and of what it says to others of its grid
    blocks: tuple[int, ...] = ()  # bytes of the state of each, in order, with what is around them; () = cannot be cut
    ranges: bool = False  # its optimizer's state can be: it works on each number by itself
    weight_bytes: int = 0  # weights and gradients
    moment_bytes: int = 0  # what the optimizer keeps besides, where one worker has all of it
    device_bytes: int = 0  # memory of what it computes on; 0 = not told


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """Rank 0 has opened the store of its generation."""

    worker_id: str
    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """In the group of `generation`, with everybody's state equal; the next step is `step`.

    `work` is all that the script wants to do (samples, over all epochs) and `done` what is behind it. `redone_steps`
    counts steps that had been made before and are lost (0 when a survivor carried the state over). In a grid every
    member and state replica says it, and the group trains when all have.
    """

    worker_id: str
    generation: int
    step: int
    done: float
    work: float
    global_batch: int = 0
    source: str = "fresh"  # fresh | peer | checkpoint: where the state came from
    redone_steps: int = 0
    formed_s: float = 0.0  # seconds to form the group
    state_s: float = 0.0  # seconds to share the state
    printed: int = -1  # bytes in the file of its output by then; -1 = it does not know
    kind: str = ""  # within | between | depth | restored: how the grid changed; "" = it is none, or the first
    moved_bytes: int = 0  # that this one received
    rolled: bool = False  # it applied a step late, with the numbers that the others had agreed on
    met_s: float = 0.0  # seconds until all of the old and the new grid had met


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """Progress: rank 0 a few times a second at most, others rarely; times are means per step since the last.

    In a grid copy 0 of each part says it.
    """

    worker_id: str
    generation: int
    step: int
    done: float
    epoch: int
    loss: float
    step_s: float
    comm_s: float = 0.0
    saved_s: float = 0.0  # seconds that checkpoints kept training waiting, since the last report
    global_batch: int = 0
    local_batch: int = 0
    noise: float | None = None  # gradient noise scale in samples, where it can be measured
    profile: Profile | None = None  # now and then
    agree_s: float = 0.0  # of the step: agreeing that it is to be applied
    sum_s: float = 0.0  # over the copies of the part
    keep_s: float = 0.0  # sums to the state replicas of the part
    idle_s: float = 0.0  # waiting for neighbours in the pipeline
    atoms: int = 0  # micro-batches of a step, over all copies; 0 = it does not say
    beside_bytes: int = 0  # most on the device at once beside what stays there between steps; 0 = it cannot be told
    units: tuple[float, ...] = ()  # s of one: before the blocks, of each block, after them; 0 = others'; () = not timed
    logs: bool = False  # its script logs to a tracker: it wants to be told what the job costs (`Spent`)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """The group of `generation` failed under this worker: a member is gone. It waits for the next Regroup."""

    worker_id: str
    generation: int
    step: int
    why: str
    pending: int = -1  # the step whose summed gradients it holds; -1 = none


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """It left as told, at a step boundary, and exits; or, told by a Regroup that it does not stay, it has given."""

    worker_id: str
    generation: int
    step: int
    done: float
    gave_bytes: int = 0


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
