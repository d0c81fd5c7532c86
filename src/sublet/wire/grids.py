"""Messages about groups: seats, meetings, moved state, progress, and lost members.

A group is a *grid*: `copies` of a model, each cut into `parts`. One part is data parallel training, and what is said of
places is then left at its default. A worker has a *place* (copy, part), and may *keep* parts of others: it holds their
state too, and brings it up to date with every step. Old and new members *meet*, and hand over what each place needs.

    controller -> worker    Regroup, Meet, Keep, Leave
    worker -> controller    Ready, Leading, Joined, Stepped, Broke, Left
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = [
    "FITS",
    "GRIDS_SINCE",
    "NO_PLACE",
    "PROFILED",
    "SESSION",
    "SHARDS",
    "STAGES",
    "Broke",
    "Joined",
    "Keep",
    "Leading",
    "Leave",
    "Left",
    "Meet",
    "Profile",
    "Ready",
    "Regroup",
    "Stepped",
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
