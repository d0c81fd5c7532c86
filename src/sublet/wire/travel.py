"""Files and logs that travel between the controller and a node that does not see its disk.

    controller -> agent     Part, Kept, Lacks
    agent -> controller     Lacks, Part, Preparing, Printed

A file travels in parts that are named by the SHA-256 of their content; with the name the receiver can check a part. A
receiver asks for few parts at a time, so that orders on the same line are never late by more than those. A part that
was asked for and never came is asked for again: there is no memory of parts under way. Between peers that both say
`frames` a part goes as raw bytes behind its header (`lines`), and behind all else that is to be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Kept", "Lacks", "Part", "Preparing", "Printed", "Travel"]


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
