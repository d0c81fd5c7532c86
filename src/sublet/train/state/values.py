"""Values of a script as a state holds them: copied into what a checkpoint knows, and laid back into the same objects.

A checkpoint has numbers, text, tensors, lists, tuples and dicts. An array is a dict that says its kind. Objects with a
`state_dict` stay the script's own, and so do lists, dicts and tensors: what comes back is laid into them, because a
script may have them in its hands under another name.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from sublet.errors import BadInput, InvalidValue

__all__ = ["described", "has_state", "laid", "load_state", "state_of", "tensors_in"]

KIND, ITEMS = "sublet.kind", "items"
STATE = "state"  # the kind of what an object with a state says of itself
DEEPEST = 32  # levels; a list that contains itself has no end
PLAIN = (bool, int, float, str)  # and None
ALLOWED = (
    "a number, text, a tensor or an array, or a list, tuple or dict of them; or, by a name of its own, an object with "
    "state_dict() and load_state_dict(), or a generator of torch or numpy"
)

ANOTHER = "keep it under another name, or give a new checkpoint directory"


def has_state(value: Any) -> bool:
    """Whether it is an object that says itself what it has come to."""
    if isinstance(value, torch.Generator | np.random.Generator):
        return True
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(value, type) and all(callable(method) for method in methods)


def state_of(value: Any) -> dict[str, Any]:
    """Of an object with a state: references to what it has, not copies."""
    if isinstance(value, torch.Generator):
        return {KIND: STATE, ITEMS: value.get_state()}
    if isinstance(value, np.random.Generator):
        return {KIND: STATE, ITEMS: described("dice", value.bit_generator.state)}
    return {KIND: STATE, ITEMS: value.state_dict()}


def load_state(name: str, saved: Any, into: Any) -> None:
    """What `state_of` gave; BadInput if it was something else that had this name."""
    if not isinstance(saved, Mapping) or saved.get(KIND) != STATE:
        raise BadInput(
            "checkpoint", f"{name} was no object with a state, and is a {type(into).__name__} now", hint=ANOTHER
        )
    if isinstance(into, torch.Generator):
        into.set_state(saved[ITEMS].cpu().clone())  # torch 2.13 crashes over a part of a tensor
    elif isinstance(into, np.random.Generator):
        into.bit_generator.state = laid(saved[ITEMS])
    else:
        into.load_state_dict(_as_it_was(saved[ITEMS], into))


def _as_it_was(state: Any, into: Any) -> Any:
    """A checkpoint has dicts and lists of counters, sets and deques: what the object has now says which they are."""
    now = into.state_dict() if isinstance(state, Mapping) else None
    there = {key: type(value) for key, value in now.items()} if isinstance(now, Mapping) else {}
    odd = {key: there[key](state[key]) for key in there if key in state and there[key] in (Counter, deque, set)}
    return {**state, **odd} if odd else state


def described(name: str, value: Any, depth: int = 0) -> Any:
    """A copy that a checkpoint can hold; InvalidValue, of this name, if there is none."""
    if depth > DEEPEST:
        raise InvalidValue(name, "...", f"at most {DEEPEST} levels deep (does it contain itself?)")
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone()
        return copy if value.device.type == "cpu" else {KIND: "tensor", "on": value.device.type, ITEMS: copy}
    if isinstance(value, np.ndarray):
        return {KIND: "array", ITEMS: _as_tensor(name, value)}
    if type(value) in (list, tuple):
        return type(value)(described(f"{name}[{at}]", each, depth + 1) for at, each in enumerate(value))
    if type(value) in (dict, OrderedDict) and all(key is None or isinstance(key, PLAIN) for key in value):
        return {key: described(f"{name}[{key!r}]", each, depth + 1) for key, each in value.items()}
    raise InvalidValue(name, f"a {type(value).__module__}.{type(value).__qualname__}", ALLOWED)


def laid(saved: Any, into: Any = None) -> Any:
    """What `described` was given: in `into` itself where that is of its kind, and a new one elsewhere."""
    if isinstance(saved, torch.Tensor):
        return _laid_tensor(saved, into)
    if isinstance(saved, list | tuple):
        known = list(into) if isinstance(into, list | tuple) else []
        found = [laid(each, known[at] if at < len(known) else None) for at, each in enumerate(saved)]
        if isinstance(saved, tuple) or type(into) is not list:
            return type(saved)(found)
        into[:] = found
        return into
    if not isinstance(saved, Mapping):
        return saved
    match saved.get(KIND):
        case "tensor":
            return _laid_tensor(saved[ITEMS].to(saved["on"]), into)
        case "array":
            return _laid_array(saved[ITEMS].cpu().numpy(), into)
        case "state":
            raise BadInput("checkpoint", "what is a plain value now was an object with a state", hint=ANOTHER)
        case "OrderedDict":  # of an earlier version
            saved = dict(saved[ITEMS])
        case _:
            pass
    there = into if type(into) is dict else {}
    rows = {key: laid(each, there.get(key)) for key, each in saved.items()}
    there.clear()
    there.update(rows)
    return there


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """All of them, wherever they are in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif has_state(value):
        yield from tensors_in(state_of(value), depth + 1)
    elif isinstance(value, Mapping | list | tuple) and depth <= DEEPEST:
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each, depth + 1)


def _as_tensor(name: str, array: np.ndarray[Any, Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(array.copy())
    except TypeError as error:
        raise InvalidValue(name, f"an array of {array.dtype}", "one of numbers") from error


def _laid_tensor(saved: torch.Tensor, into: Any) -> torch.Tensor:
    if not isinstance(into, torch.Tensor):
        return saved.clone()
    if into.shape != saved.shape or into.dtype != saved.dtype or 0 in into.stride():
        return saved.clone().to(into.device)
    with torch.no_grad():
        into.copy_(saved)
    return into


def _laid_array(saved: np.ndarray[Any, Any], into: Any) -> np.ndarray[Any, Any]:
    alike = isinstance(into, np.ndarray) and into.shape == saved.shape and into.dtype == saved.dtype
    if not alike or not into.flags.writeable:
        return saved.copy()
    into[...] = saved
    return np.asarray(into)
