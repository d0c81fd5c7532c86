"""What checkpoints need of the place that they lie in: a directory (`commit`) or an object store (`bucket`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sublet.errors import InvalidValue
from sublet.machine.remote import is_remote, open_uri
from sublet.machine.rng import RNG, Rng
from sublet.machine.wall import WALL, Wall
from sublet.train.checkpoint.bucket import Bucket
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.disk import DISK, Disk
from sublet.train.checkpoint.folder import Place
from sublet.wire import saves

__all__ = ["Store", "checkpoint_place", "open_store", "place_from", "step_of"]


Store = Directory | Bucket  # a commit is seen by all or by none, and refused to a generation that is over


def step_of(place: Place) -> int:
    """Of which step the checkpoint at this place is."""
    name = PurePosixPath(place).name
    return int(name.removeprefix("step-").partition(".")[0])


def place_from(where: Place) -> Place:
    """A URI of an object store as it is, anything else as a path."""
    text = str(where)
    return text if is_remote(text) else Path(text.removeprefix("file://"))


def open_store(where: Place, *, disk: Disk = DISK, wall: Wall = WALL, rng: Rng = RNG) -> Store:
    """The store at a path or URI. Nobody is asked yet; InvalidValue, MissingExtra or StoreFailed if it cannot be."""
    place = place_from(where)
    if isinstance(place, Path):
        return Directory(place, disk=disk, wall=wall, rng=rng)
    return Bucket(open_uri(place), wall=wall, rng=rng)


def checkpoint_place(asked: Path | str | None, env: Mapping[str, str]) -> Place | None:
    """By what a script asked for, and what its environment says; None = nothing is kept.

    On a node whose disk nobody else sees, the agent carries one directory to the controller. A directory of the
    script's own there would be lost with the node, though it was saved.
    """
    given = env.get("SUBLET_CHECKPOINT_DIR") or None
    carried = given is not None and env.get("SUBLET_CHECKPOINT_TIER") == saves.DISK
    own = place_from(asked) if asked else None
    if given is None or own is None or not carried or not isinstance(own, Path) or own == Path(given):
        return own or (place_from(given) if given else None)
    if Directory(own).steps():
        allowed = (
            f"left out here: this node's disk is its own, and only {given} is carried from it."
            f" If all nodes see {asked}, write it as checkpoint.uri into the job file; then training goes on from there"
        )
        raise InvalidValue("checkpoint_dir", str(asked), allowed)
    print(  # noqa: T201 - who reads the log looks for files there
        f"sublet: checkpoints are kept in {given}, which is carried to the controller, and not in checkpoint_dir ="
        f" {asked}: that would be lost with this node",
        file=sys.stderr,
        flush=True,
    )
    return place_from(given)
