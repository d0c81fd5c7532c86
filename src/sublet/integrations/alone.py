"""Frameworks see one process at any number of workers: sums, samples and ranks are the session's.

A framework forms a group of its own if it finds RANK in the environment. A controller sets RANK for scripts that ask
for it, with its value at the start; the session does not need it. So it is removed when an integration is imported.
"""

from __future__ import annotations

import os

from sublet.errors import InvalidValue

__all__ = ["look_alone"]

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def look_alone() -> None:
    """Call it before a framework is imported; InvalidValue under torchrun and the like, with their fixed size."""
    if "SUBLET_CONTROL_FD" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidValue(
            "WORLD_SIZE",
            os.environ["WORLD_SIZE"],
            "unset: start one process by `python SCRIPT`, or several by `sublet run --workers N`, not by torchrun "
            "or `accelerate launch`",
        )
    for name in RANKS:
        os.environ.pop(name, None)
