"""Checks that all frameworks share. They see one process at any number of workers: the session knows the others.

A framework forms a group of its own if it finds RANK in the environment. A controller sets RANK for scripts that ask
for it, with its value at the start; the session does not need it. So it is removed when an integration is imported.
"""

from __future__ import annotations

import os
from typing import Any

from torch.utils.data import IterableDataset

from sublet.errors import InvalidValue

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


def require_map_style(field: str, dataset: Any) -> None:
    """InvalidValue for a stream: frameworks count the batches of an epoch, and a stream has none that are known."""
    if isinstance(dataset, IterableDataset):
        raise InvalidValue(
            field,
            f"{type(dataset).__name__}, a stream",
            "a map-style dataset, with __len__ and __getitem__; for a stream write the loop with train.session",
        )
