"""How far the newest checkpoint is, at a glance: for a session that has yet to meet those with whom it goes on from it.

That is what its manifest says, as this worker sees it: nothing where the checkpoint is on the disk of another node.
"""

from __future__ import annotations

import os
from contextlib import suppress

from sublet.errors import SubletError
from sublet.train.checkpoint.manifest import read_manifest
from sublet.train.saving import Saver

__all__ = ["last_saved"]


def last_saved(saver: Saver) -> tuple[int, int] | None:
    """Its steps and samples; None if there is none that can be read, which others may find out in their time."""
    if saver.directory is None or os.environ.get("SUBLET_START_OVER") == "1":
        return None
    with suppress(OSError, SubletError, KeyError):
        for step in saver.store.steps()[:1]:
            return step, int(read_manifest(saver.store.folder(step), step).meta["samples_done"])
    return None
