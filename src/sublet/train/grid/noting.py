"""What is in the attributes of modules, as it was a moment ago: noted twice in every step.

`scale = block.scale` before `s.step`, `block.scale = scale * 0.9` after it: who goes over that step has to see what was
there when its batch began, and a state is most often of later. So numbers and words are noted, by reference, as they
cannot change, and copies of lists, dicts, ... of a few of them; and which names there were. Nobody compares before a
state is taken: then it has what has changed since, what has been made and what deleted (`remembering`).

An object that holds such values may be replaced by another (`model.cfg = dataclasses.replace(model.cfg, ...)`): what
is noted is of the one that is there, and is compared with that which has its place when a state is taken.

Tensors and arrays, what is large, and other objects are not noted, nor what another module has that was put in place of
one.
"""

from __future__ import annotations

import copy
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from sublet.train.reach import Place, places_of
from sublet.train.remembered import GONE, OTHER, SIMPLE, Remembered, kind_of, told, told_of_itself
from sublet.train.values import CONTAINERS, SMALL, is_small

__all__ = ["BEGAN", "STEPPED", "Noted", "Noting"]

BEGAN, STEPPED = "began", "stepped"  # moments of a step: its batch begins, and it is made
NUMPYS = {np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]}
KINDS = frozenset((*SIMPLE, *NUMPYS, torch.dtype))  # and words of an Enum: they cannot change


class Mark:
    """In place of a value."""


ABSENT: Any = Mark()  # there is none
UNTOLD: Any = object()  # there is one of which nothing is noted


class Noted(NamedTuple):
    """Values at one moment."""

    places: list[Place]
    where: list[tuple[Place, str]]
    values: list[Any]
    themselves: dict[int, Any]  # of those that are copies, the lists and dicts that were there, by their number

    def since(self, comes_back: Callable[[str, str], bool], places: Iterable[Place] = ()) -> dict[str, dict[str, Any]]:
        """Of those that are others now what they were then, by place and name, as a state has them.

        `places`: those of now, where an object may have been put in place of another. What was not there is told
        where what is there now `comes_back`, by place and name, when it has been taken away.
        """
        found: dict[str, dict[str, Any]] = {}
        present = _by_name(places)
        for number, ((place, name), then) in enumerate(zip(self.where, self.values, strict=True)):
            now = present.get(place.name, place).values.get(name, ABSENT)
            if now is then or then is UNTOLD or kind_of(then) == OTHER or Remembered(then).is_still(now):
                continue
            itself = number in self.themselves and self.themselves[number] is now
            found.setdefault(place.name, {})[name] = told_of_itself(then) if itself else told(then)
        there = {(place.name, name) for place, name in self.where}
        for place in filter(_is_open, (present.get(each.name, each) for each in self.places)):
            for name, value in place.items():
                made = (place.name, name) not in there and kind_of(value) != OTHER
                if made and comes_back(place.name, name):
                    found.setdefault(place.name, {})[name] = GONE
        return found

    def gone(self, places: Iterable[Place] = ()) -> list[tuple[str, str]]:
        """What was there, by place and name, and is not any more; `places`: those of now."""
        present = _by_name(places)
        there = zip(self.where, self.values, strict=True)
        noted = [(place, name) for (place, name), then in there if then is not UNTOLD and _is_open(place)]
        return [(place.name, name) for place, name in noted if name not in present.get(place.name, place).values]


class Noting:
    """Of these places."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = list(places)
        self._look()

    def now(self) -> Noted:
        """Quickly, as it is done in every step."""
        if [*map(len, self._made)] != self._counts:  # something was made, or deleted
            self._look()
        values = self._values()
        if replaced := [number for number, thing in self._opened if values[number] is not thing]:
            self._open([self._where[number] for number in replaced])
            values = self._values()
        if (kinds := [*map(type, values)]) != self._kinds:
            if Mark in kinds:  # deleted, and something else was made
                self._look()
                values = self._values()
            else:
                self._sort(kinds)
        for number in self._others:
            values[number] = UNTOLD  # nor is it kept alive
        themselves, fixed = dict[int, Any](), self._fixed
        for number in self._held:
            value = values[number]
            if value is fixed.get(number):
                continue
            values[number] = copied = _copied(value)
            if copied is not UNTOLD:
                (fixed if copied is value else themselves)[number] = value
        return Noted(self._places, self._where, values, themselves)

    def _values(self) -> list[Any]:
        return [values.get(name, ABSENT) for values, name in self._read]

    def _open(self, where: list[tuple[Place, str]]) -> None:
        """What is in the objects that are there now, by the names that it had in those before them."""
        for place, name in where:
            inside = f"{place.name}.{name}"
            rest = [each for each in self._places if not _is_within(each.name, inside)]
            known = {id(each.values) for each in rest}  # they have names already
            found = places_of([(inside, place.values.get(name))])
            self._places = rest + [
                each for each in found if _is_within(each.name, inside) and id(each.values) not in known
            ]
        self._look()

    def _look(self) -> None:
        self._made = [place.values for place in filter(_is_open, self._places)]
        self._counts = [*map(len, self._made)]
        self._where = [(place, name) for place in self._places for name, _ in place.items()]
        self._read = [(place.values, name) for place, name in self._where]
        values, names = self._values(), {place.name for place in self._places}
        self._opened = [
            (number, values[number])
            for number, (place, name) in enumerate(self._where)
            if f"{place.name}.{name}" in names
        ]
        self._sort([*map(type, values)])

    def _sort(self, kinds: list[type]) -> None:
        self._kinds, self._fixed = kinds, dict[int, Any]()  # of the latter tuples that cannot change, by their number
        self._held = [number for number, kind in enumerate(kinds) if kind in CONTAINERS or _is_named(kind)]
        told = {*self._held}
        self._others = [
            number
            for number, kind in enumerate(kinds)
            if not (kind in KINDS or number in told or issubclass(kind, enum.Enum))
        ]


def _is_open(place: Place) -> bool:
    """Whether all that is made there is seen; of others, names are known when they are looked for."""
    return type(place.values) is dict


def _by_name(places: Iterable[Place]) -> dict[str, Place]:
    """Those that have a name alone: of two functions of one name nobody can say which is which."""
    found = list(places)
    counts = Counter(place.name for place in found)
    return {place.name: place for place in found if counts[place.name] == 1}


def _is_within(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.")


def _is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _copied(value: Any) -> Any:
    """A list, a dict, ... of a few numbers and words; UNTOLD if there is more in it."""
    if len(value) > SMALL:
        return UNTOLD
    inside = [*chain(value, value.values())] if isinstance(value, Mapping) else value
    if KINDS.issuperset(map(type, inside)):  # most often: nothing in it can change
        return copy.copy(value)
    return copy.deepcopy(value) if is_small(value) and _is_plain(value) else UNTOLD


def _is_plain(value: Any) -> bool:
    """Numbers and words, however deep they are in lists and dicts; it has an end, as it is small."""
    if type(value) not in CONTAINERS and not _is_named(type(value)):
        return type(value) in KINDS
    return all(map(_is_plain, chain(value, value.values()) if isinstance(value, Mapping) else value))
