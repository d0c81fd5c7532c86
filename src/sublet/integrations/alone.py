"""A framework is to see one process, whatever the width: sums, samples and places are the session's.

Frameworks form a group of their own as soon as they find RANK in the environment. A controller sets it for scripts that
ask for it, as it was at the start; the session does not need it. So it is taken away before a framework looks, which is
when an integration is imported.
"""

from __future__ import annotations

import os

from sublet.errors import InvalidValue

__all__ = ["look_alone"]

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def look_alone() -> None:
    """Before a framework is imported; InvalidValue under torchrun and its kin, whose width cannot change."""
    if "SUBLET_CONTROL_FD" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidValue(
            "WORLD_SIZE",
            os.environ["WORLD_SIZE"],
            "unset: start one process by `python SCRIPT`, or several by `sublet run --workers N`, not by torchrun "
            "or `accelerate launch`",
        )
    for name in RANKS:
        os.environ.pop(name, None)
