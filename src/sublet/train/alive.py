"""What this process holds of a kind: for what scripts make and do not hand over."""

from __future__ import annotations

import gc
from itertools import compress
from typing import TypeVar

__all__ = ["alive"]

T = TypeVar("T")


def alive(kind: type[T]) -> list[T]:
    """All objects of it, and of kinds below it, that are alive.

    There are hundreds of thousands of objects and few types: types are asked, once each. Nor does an object say what
    it is, since the class that a proxy names may be anything.
    """
    everything = gc.get_objects()
    kinds = {each for each in set(map(type, everything)) if issubclass(each, kind)}
    return list(compress(everything, map(kinds.__contains__, map(type, everything)))) if kinds else []
