"""Where a session keeps its checkpoints: where its script says, or where its controller sees to it that they last.

On a node whose disk nobody else sees, the agent carries one directory to the controller. A directory of the script's
own there would be lost with the node, though it was saved.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from sublet.errors import InvalidValue
from sublet.train.checkpoint.commit import Directory
from sublet.train.checkpoint.folder import Place
from sublet.train.checkpoint.store import place_from
from sublet.wire.saves import DISK

__all__ = ["checkpoint_place"]


def checkpoint_place(asked: Path | str | None, env: Mapping[str, str]) -> Place | None:
    """By what a script asked for, and what its environment says; None = nothing is kept."""
    given = env.get("SUBLET_CHECKPOINT_DIR") or None
    carried = given is not None and env.get("SUBLET_CHECKPOINT_TIER") == DISK
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
