"""Libraries that take seconds to import, imported once per machine before workers need them."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence

__all__ = ["PRELOAD", "import_all"]

# What is not installed is left out. The first optimizer of a script imports torch._dynamo: seconds, unless it is there.
PRELOAD = ("torch", "torch._dynamo", "torch.utils.data", "sublet.train.sessions.copies", "sublet.train.grid.in_stages")


def import_all(names: Sequence[str]) -> None:
    """A failed import is left to the workers that need it, which say why. Only forks come after it."""
    gc.disable()  # of what is imported nothing is garbage: to look for it takes a tenth of the time
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a library does when it is imported
            print(f"not preloaded: {name}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the parent
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page
