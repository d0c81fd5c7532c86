"""Numbers and words in the attributes of modules, as they were a moment ago: noted twice in every step.

`scale = block.scale` before `s.step`, `block.scale = scale * 0.9` after it: who goes over that step has to see what was
there when its batch began, and a state is most often of later. What is noted are references to what cannot change, so
nothing is copied, and nobody compares before a state is taken: then it has what has changed since (`remembering`).

Lists, tensors and buffers are not noted, nor what another module has that was put in place of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from sublet.train.reach import Place
from sublet.train.remembered import SIMPLE, Remembered, told

__all__ = ["BEGAN", "STEPPED", "Noted", "Noting"]

BEGAN, STEPPED = "began", "stepped"  # moments of a step: its batch begins, and it is made
NUMPYS = {np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]}
KINDS = frozenset((*SIMPLE, *NUMPYS))
ABSENT: Any = object()


class Noted(NamedTuple):
    """Values at one moment."""

    where: list[tuple[Place, str]]
    values: list[Any]

    def since(self) -> dict[str, dict[str, Any]]:
        """Of those that are others now what they were then, by place and name, as a state has them."""
        found: dict[str, dict[str, Any]] = {}
        for (place, name), then in zip(self.where, self.values, strict=True):
            now = place.values.get(name, ABSENT)
            if now is not then and type(then) in KINDS and not Remembered(then).is_still(now):
                found.setdefault(place.name, {})[name] = told(then)
        return found


class Noting:
    """Of these places."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = list(places)
        self._made = [place.values for place in self._places if type(place.values) is dict]
        self._look()

    def now(self) -> Noted:
        """Quickly, as it is done in every step."""
        if [*map(len, self._made)] != self._counts:  # something was made, or deleted
            self._look()
        return Noted(self._where, [values.get(name, ABSENT) for values, name in self._read])

    def _look(self) -> None:
        self._counts = [*map(len, self._made)]
        self._where = [(place, name) for place in self._places for name, value in place.items() if type(value) in KINDS]
        self._read = [(place.values, name) for place, name in self._where]
