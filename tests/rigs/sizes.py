"""How much the tests try: `make test` a part that fits into minutes, `make test SIZE=full` all of it.

What is checked is the same in both, and so are the first examples: fewer are drawn, of the same seeds. Nothing that a
test asserts depends on the size.
"""

from __future__ import annotations

import math
import os

import pytest

__all__ = ["FULL", "examples", "only_in_full", "sized"]

FULL = os.environ.get("TEST_SIZE") == "full"
PART = 0.25  # of the examples of a property
only_in_full = pytest.mark.skipif(not FULL, reason="takes long: `make test SIZE=full`")


def sized(part: int, full: int) -> int:
    """So many of something."""
    return full if FULL else part


def examples(full: int) -> int:
    """Of a property: never fewer than ten, or than there are."""
    return full if FULL else max(min(full, 10), math.ceil(PART * full))
