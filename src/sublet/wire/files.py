"""Messages about files and checkpoints of a node that does not see the controller's disk.

    controller -> agent              Part, Kept, Lacks
    agent -> controller              Lacks, Part, Preparing, Printed
    worker -> agent -> controller    Saved, SaveFailed, Damaged
    worker -> agent                  Wants, answered by Brought
    agent -> controller              Offered, answered by Carried; Wants, answered by Newest; Uncarried

A file travels in parts that are named by the SHA-256 of their content; with the name the receiver can check a part. A
receiver asks for few parts at a time, so that orders on the same line are never late by more than those. A part that
was asked for and never came is asked for again: there is no memory of parts under way. Between peers that both say
`frames` a part goes as raw bytes behind its header (`lines`), and behind all else that is to be said.
The parts of an offered or wanted checkpoint travel as all files do: the side that lacks one asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HURRY_S = 10.0  # wall: so long the end of a worker that is to be gone at once waits for what it saved
DISK = "disk"  # of the node: goes with it
ANCHOR = "anchor"  # where the controller is, or a directory that it and the nodes see
BUCKET = "bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is committed; `tier` says what it outlives."""

    worker_id: str
    step: int
    done: float
    seconds: float  # of writing, in the background; to a controller host, of carrying
    blocked_s: float  # of training that stood still for it
    size_bytes: int
    tier: str = ANCHOR
    part: int = 0  # of a grid, that it has written; what part 0 says is that of all

    @property
    def safe(self) -> bool:
        """It outlives the nodes: it counts as saved."""
        return self.tier != DISK


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """A checkpoint could not be written; training goes on, and the older ones stay."""

    worker_id: str
    step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """Checkpoints that cannot be trusted were passed over, and that of `step` was loaded.

    Without any (`step` is -1) the worker does not begin at 0: it waits for orders.
    """

    worker_id: str
    paths: tuple[str, ...]
    why: str  # of the newest
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A node has a checkpoint that its controller may lack; `root` names all of it. Said again until it is answered.

    `generation` is that of its writer. A save of a script without the SDK has no step (-1).
    """

    worker_id: str
    generation: int
    root: str
    size_bytes: int
    step: int = -1
    done: float = 0.0
    ago_s: float = 0.0  # wall, since the last of it was written, without a Saved
    read_s: float = 0.0  # wall, that its node took to read and name it: carrying begins with that


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The controller has what was offered as `root`, for good, or something newer; or it does not want it (`why`)."""

    worker_id: str
    root: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """A worker of `generation` is to go on from the newest checkpoint: no older one commits from now on."""

    worker_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The newest that the controller has; without a root, there is none.

    A checkpoint on the node's own disk that is newer counts if its writer was of generation `fence` or a later one.
    """

    worker_id: str
    root: str = ""
    step: int = -1
    fence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The newest checkpoint is in the worker's directory; or it is unknown whether there is one (`why`)."""

    worker_id: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncarried:
    """A checkpoint of the worker stays on its node, and is lost with it."""

    worker_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Travel:
    """The files that a worker needs before it starts; part of the order to start it.

    A node that can read `words` in the file `witness` has the controller's disk: the order's own paths are right there.
    If neither a witness nor code is named, it has.
    """

    witness: str = ""
    words: str = ""
    code: str = ""  # names the working directory as it was submitted; "" = that of the order, which the node has
    setup: str = ""  # a script of bash, to be run once on the node in the working directory
    carries: bool = False  # it saves on the node's own disk, and its agent carries that to the controller
    shared: str = ""  # ... unless the node sees this folder: then the order names a directory that the controller sees
    kept: Mapping[str, str] = field(default_factory=dict)  # folders that the worker has, by the URI they go back to
    image: str = ""  # of the container that it runs in
    inside: str = ""  # ... with what this script, run in it once on the node, has made of it
    seen: tuple[str, ...] = ()  # paths of the node, outside of the working directory, that are mounted; there as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """The agent, or the controller, has no parts of these names; what came for those `doubted` was something else."""

    digests: tuple[str, ...]
    doubted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Here is one, packed or as it is: its name tells which. Without data, there is none of this name."""

    digest: str
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """The worker has not started yet: its node fetches what it needs, or runs its setup. Said while that goes on.

    Or it has ended, and its node still carries what it saved.
    """

    worker_id: str
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """Output of a worker from byte `offset` on, in base64."""

    worker_id: str
    offset: int
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The controller has what the worker printed up to byte `offset`."""

    worker_id: str
    offset: int
