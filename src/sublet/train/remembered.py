"""Values as they were when a session began, and whether they are others now.

plain     a number, text, None: as it is in a state
held      a tensor, an array, dice, a member of an Enum, or a list, dict, ... of such: copied, and laid back
long      too much of it to be copied each time: whether it is another is all that is told
other     anything else: an object, a function, a file
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from sublet.train.values import CONTAINERS, FACTORIES, described, has_dice, laid, load_state, state_of

__all__ = [
    "FACT",
    "GONE",
    "HELD",
    "LONG",
    "MANY",
    "OTHER",
    "PLAIN",
    "Remembered",
    "is_gone",
    "kind_of",
    "meant",
    "told",
    "told_of_itself",
]

PLAIN, HELD, LONG, OTHER = "plain", "held", "long", "other"
SIMPLE = (bool, int, float, str, type(None))
NUMPY = "numpy"  # in a state: the type of a number that is numpy's
FACT = "fact"  # in a state: which kind of word
GONE = {FACT: "gone"}  # in a state: there is none of that name any more
SMALL = 1 << 20  # numbers in a tensor, or an array, that is compared; of a larger tensor torch's count of writes is
LONGEST = 20_000  # values in lists and dicts; a tensor in them counts as more
MANY = 1000  # things in a list, or a dict, that are looked at one by one
NUMBERS_TO_A_VALUE = 50
DEEPEST = 16


def kind_of(value: Any) -> str:
    """See above."""
    if _is_plain(value):
        return PLAIN
    if isinstance(value, torch.Tensor):
        # What asks for a gradient is a parameter, or comes of the last forward.
        simple = not value.requires_grad and value.layout == torch.strided and not value.is_meta
        return HELD if simple and type(value) is torch.Tensor else OTHER
    if type(value) is np.ndarray:
        return OTHER if value.dtype.kind not in "biuf" else HELD if value.size <= SMALL else LONG
    if has_dice(value) or _is_fact(value):
        return HELD
    left = _left(value, LONGEST)
    if left is None or (left < 0 and len(value) <= MANY):  # of few that are large each is looked at
        return OTHER
    return HELD if left >= 0 else LONG


def told(value: Any) -> Any:
    """As a state has it. A tensor is told by reference; all else is copied."""
    if isinstance(value, np.generic):
        return {NUMPY: value.dtype.name, "value": value.item()}
    if isinstance(value, torch.Tensor):
        return {"tensor": value.detach(), "on": value.device.type}
    if _is_fact(value):
        return _fact(value)
    if isinstance(value, Mapping) and (FACT in value or NUMPY in value):  # what is ours is not to be taken for it
        return told_of_itself(value)
    return state_of(value) if has_dice(value) else described("a value", value)


def told_of_itself(value: Any) -> dict[str, Any]:
    """A list, a dict, ...: as a state has it if it is to be laid into the very one that is there."""
    return {FACT: HELD, "value": described("a value", value)}


def is_gone(saved: Any) -> bool:
    """Of what a state has by a name."""
    return isinstance(saved, Mapping) and saved.get(FACT) == GONE[FACT]


def meant(saved: Any, present: Any = None, kind: Any = None) -> Any:
    """What `told` was given: in what is there, where that is of its kind; `kind`: the class that it had at first."""
    if has_dice(present):
        load_state("dice", saved, present)
        return present
    if isinstance(saved, Mapping) and FACT in saved:
        return _meant_fact(saved, kind, present)
    if isinstance(saved, Mapping) and NUMPY in saved:
        return np.dtype(saved[NUMPY]).type(saved["value"])
    if isinstance(saved, Mapping) and saved.keys() == {"tensor", "on"}:
        there = isinstance(present, torch.Tensor) and not (present.requires_grad or present.is_inference())
        return laid(saved["tensor"].to(saved["on"]), present if there else None)
    return laid(saved, present)


class Remembered:
    """One value, as it is now."""

    def __init__(self, value: Any) -> None:
        self.kind, self.value = kind_of(value), value
        self._mark = _mark(value, self.kind)

    @property
    def is_nothing(self) -> bool:
        """None or False: what is to be made later begins so."""
        return self.value is None or self.value is False

    def is_itself(self, value: Any) -> bool:
        """The very object, of a kind that cannot change: most are, and there are many."""
        return value is self.value and self.kind == PLAIN

    def is_still(self, value: Any) -> bool:
        """Whether the value that is there now is the same."""
        if self.is_itself(value):
            return True
        kind = kind_of(value)
        return kind == self.kind and _alike(_mark(value, kind), self._mark)

    def again(self, present: Any) -> Any:
        """The same object, as it was; what there is no copy of stays what it is."""
        if self.kind == PLAIN:
            return self.value
        if self.kind != HELD or _is_large(self.value) or (present is self.value and self.is_still(present)):
            return present
        if _is_fact(self.value):
            return self.value
        if has_dice(self.value):
            load_state("dice", self._mark, self.value)
            return self.value
        return laid(self._mark, self.value)


def _is_plain(value: Any) -> bool:
    return type(value) in SIMPLE or (isinstance(value, np.generic) and value.dtype.kind in "biuf")


def _left(value: Any, left: int, depth: int = 0) -> int | None:
    """Of so many values, how many are left after these; below 0 if they are more, None if some cannot be held."""
    if isinstance(value, torch.Tensor | np.ndarray):
        size = value.numel() if isinstance(value, torch.Tensor) else value.size
        return None if kind_of(value) == OTHER else left - 1 - size // NUMBERS_TO_A_VALUE
    if _is_plain(value):
        return left - 1
    if type(value) not in CONTAINERS or depth > DEEPEST:
        return None
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if factory is not None and factory not in FACTORIES.values():
        return None
    if len(value) > left:
        return -1
    for each in chain(value, value.values()) if isinstance(value, Mapping) else value:
        found = _left(each, left, depth + 1)
        if found is None or found < 0:
            return found
        left = found
    return left


def _is_fact(value: Any) -> bool:
    """What cannot change, and is of a class that only the script has, or is torch's: a word for something."""
    if isinstance(value, enum.Enum | torch.dtype):
        return True
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    return named and (_left(tuple(value), LONGEST) or -1) >= 0


def _fact(value: Any) -> dict[str, Any]:
    if isinstance(value, enum.Enum):
        return {FACT: "name", "value": value.name}
    if isinstance(value, torch.dtype):
        return {FACT: "dtype", "value": str(value).removeprefix("torch.")}
    return {FACT: "tuple", "value": described("a value", tuple(value))}


def _meant_fact(saved: Mapping[str, Any], kind: Any, present: Any) -> Any:
    """Of the class that was there at first; where there was none, what is there stays."""
    match saved[FACT]:
        case "held":
            return laid(saved["value"], present)
        case "dtype":
            return getattr(torch, saved["value"])
        case "name" if saved["value"] in getattr(kind, "__members__", ()):
            return kind[saved["value"]]
        case "tuple" if hasattr(kind, "_make"):
            return kind._make(laid(saved["value"]))
    return present


def _is_large(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > SMALL


def _mark(value: Any, kind: str) -> Any:
    """By which it is known again."""
    if kind == PLAIN:
        # By their text: of numbers it is exact, and tells -0.0 from 0.0, True from 1, and not a nan from itself.
        return type(value).__name__, repr(value)
    if kind == HELD and _is_fact(value):
        return _fact(value)
    if kind == HELD and not _is_large(value):
        return described("a value", state_of(value) if has_dice(value) else value)
    if isinstance(value, torch.Tensor):
        return id(value), 0 if value.is_inference() else value._version  # noqa: SLF001 - torch counts what is done to it
    return id(value), len(value) if kind == LONG else 0


def _alike(one: Any, other: Any) -> bool:
    """Of two that `described` made, or `_mark`."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(one, other.to(one.device))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return repr(one) == repr(other)
