"""Calls that leave nothing behind: tables that a module makes on its first call, buffers, counters, and the dice.

    with untouched(model.modules()):
        model(batch)        # whatever it keeps of that is gone afterwards

Where nothing is computed (`ghosts`), what a module keeps would be without numbers; where a forward is only tried, it
would not be there in a process that did not try it.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sublet.train.state import random_state, restore_random

__all__ = ["untouched"]

DEEPEST = 2  # containers within one another that a module may keep things in
CONTAINERS = (dict, OrderedDict, defaultdict, list, set)  # and none of their children, which may refuse to be filled


@contextmanager
def untouched(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Modules are as they were, and so are all dice. Buffers are lent as copies: who has the copy may still need it."""
    distinct = list({id(each): each for each in modules}.values())
    kept = [(vars(each), dict(vars(each))) for each in distinct]
    contents = list({id(found): (found, found.copy()) for found in _containers(distinct)}.values())
    generators = [
        (value, value.get_state()) for _, was in kept for value in was.values() if isinstance(value, torch.Generator)
    ]
    dice = random_state()
    _lend_buffers(distinct)
    try:
        yield
    finally:
        for now, was in kept:
            now.clear()
            now.update(was)
        for found, was_in in contents:
            _put_back(found, was_in)
        for generator, state in generators:
            generator.set_state(state)
        restore_random(dice)


def _containers(modules: list[nn.Module]) -> Iterator[Any]:
    """Of buffers, of hooks, and those of the user."""
    within: list[Any] = [value for each in modules for value in vars(each).values()]
    for _ in range(DEEPEST):
        found = [value for value in within if type(value) in CONTAINERS]
        yield from found
        within = [value for each in found for value in (each.values() if isinstance(each, dict) else each)]


def _put_back(found: Any, was: Any) -> None:
    """Into the same container: others may hold it."""
    if isinstance(found, list):
        found[:] = was
    else:
        found.clear()
        found.update(was)


def _lend_buffers(modules: list[nn.Module]) -> None:
    lent: dict[int, torch.Tensor] = {}
    for each in modules:
        for name, buffer in each._buffers.items():  # noqa: SLF001 - to set one by its name would ask for a parameter too
            if buffer is not None:
                each._buffers[name] = lent.setdefault(id(buffer), buffer.clone())  # noqa: SLF001 - as above
