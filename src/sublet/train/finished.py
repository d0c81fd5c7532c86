"""A training that is over before it begins: its directory has the last checkpoint of one that is finished.

Started by hand, a script may be run again, or may train several times in a row. With one checkpoint directory for all
of that the second finds the first finished, and goes on behind its loop with a model that was trained elsewhere.
"""

from __future__ import annotations

import os
import sys

from sublet.errors import InvalidValue
from sublet.train.checkpoint.folder import Place

__all__ = ["say_finished"]

_begun: set[tuple[int, str]] = set()  # a process, and a directory that it has trained with


def say_finished(directory: Place | None, steps: int, *, over: bool) -> None:
    """A training without a controller begins: where nothing is left to train, say so.

    InvalidValue if this process has trained with the directory before: that is another training, and not a second run.
    """
    if directory is None:
        return
    ours = (os.getpid(), str(directory))
    if over and ours in _begun:
        raise InvalidValue(
            "checkpoint_dir",
            str(directory),
            f"another one: a training of {steps} steps is finished there, of this process, and nothing would be "
            "trained. Give each training a directory of its own (checkpoint_dir=), or submit each as a job",
        )
    _begun.add(ours)
    if over:
        print(  # noqa: T201 - to the user, in the user's process
            f"sublet: the training in {directory} is finished ({steps} steps): there is nothing left to train\n"
            "  next: go on with its result; to train anew, give another checkpoint_dir, or remove this one; to train "
            "on, more epochs or steps",
            file=sys.stderr,
            flush=True,
        )
