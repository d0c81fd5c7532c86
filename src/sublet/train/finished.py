"""A training that is over before it begins: its directory has the last checkpoint of one that has ended.

Started by hand, a script may be run again, or may train several times in a row. With one checkpoint directory for all
of that the second finds the first finished, and goes on behind its loop with a model that was trained elsewhere.
"""

from __future__ import annotations

import os
import sys

from sublet.errors import InvalidValue
from sublet.train.checkpoint.folder import Place
from sublet.train.extent import Extent
from sublet.train.state import Progress

__all__ = ["look_back"]

_begun: set[tuple[int, str]] = set()  # a process, and a directory that it has trained with


def look_back(directory: Place | None, extent: Extent, progress: Progress, *, alone: bool, rank: int) -> None:
    """A training begins, with the state that it goes on from: where nothing is left to train, say so.

    InvalidValue if this process has trained with the directory before: that is another training, and not a second run.
    Not under a controller, which gives each a directory (`alone`).
    """
    over, ours = extent.over(progress), (os.getpid(), str(directory))
    if over and alone and directory is not None and ours in _begun:
        raise InvalidValue(
            "checkpoint_dir",
            str(directory),
            f"another one: a training of {progress.steps} steps is finished there, of this process, and nothing would "
            "be trained. Give each training a directory of its own (checkpoint_dir=), or submit each as a job",
        )
    _begun.add(ours)
    if not over:
        progress.ended = ""  # of another length: it is told to train on
    elif rank == 0:
        print(_words(directory, extent, progress), file=sys.stderr, flush=True)  # noqa: T201 - to the user, in the user's process


def _words(directory: Place | None, extent: Extent, progress: Progress) -> str:
    how, more = f"is finished ({progress.steps} steps)", "more epochs or steps"
    if not extent.reached(progress):
        how = f"was ended by its script, which left its loop after {progress.steps} steps of {extent.name}"
        more = f"other epochs or steps than {extent.name}"
    return (
        f"sublet: the training in {directory} {how}: there is nothing left to train\n"
        f"  next: go on with its result; to train anew, give another checkpoint_dir, or remove this one; to train on, "
        f"{more}"
    )
