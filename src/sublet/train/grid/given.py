"""The functions that a script has given to `s.step`, by names that are the same in every process that runs it.

A script may choose between several (`s.step(warm if s.steps < 100 else full, batch)`), and what each asks for is part
of the state from the step on that it is given first. The first is the same one in every process, since each begins its
loop with `s.steps` of 0. Of the others who joins late may see the third before the second, so they go by the names
that the script has for them. Where several are of one name, such as those that are made anew for every step, nobody
could tell them apart: then the first alone counts.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from sublet.train.remembered import OTHER, kind_of

__all__ = ["Given"]

FIRST = "loss_of"


class Given:
    """Of one process."""

    def __init__(self) -> None:
        self._last: Any = None
        self._named = dict[str, Any]()

    def new(self, loss_of: Any) -> dict[str, Any]:
        """What is to be looked at from now on, by name; None in place of one that cannot be told from others."""
        if loss_of is self._last:  # most often
            return {}
        self._last = loss_of
        if any(_is_same(loss_of, each) for each in self._named.values()):
            return {}
        name = f"{FIRST} ({_name_of(loss_of)})" if self._named else FIRST
        if name in self._named and self._named[name] is None:
            return {}
        self._named[name] = None if name in self._named else loss_of
        return {name: self._named[name]}


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _is_same(one: Any, other: Any) -> bool:
    """The same object, or one made anew that asks for the very same: a method, a lambda, a partial."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, types.MethodType):
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    if isinstance(one, types.FunctionType):
        same = one.__code__ is other.__code__ and not (one.__dict__ or other.__dict__)
        return same and _are_same(one.__closure__ or (), other.__closure__ or ())
    if isinstance(one, functools.partial):
        names = [*one.keywords] == [*other.keywords] and _is_same(one.func, other.func)
        return names and _are_same((*one.args, *one.keywords.values()), (*other.args, *other.keywords.values()))
    return False


def _are_same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """What is a value in a partial is the script's, and may be another for every step."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(
        one is other or (not isinstance(one, types.CellType) and OTHER not in (kind_of(one), kind_of(other)))
        for one, other in pairs
    )
