"""State of the script itself, kept from one epoch to the next as weights are.

    kept = s.keep(best=math.inf, bad=0, average=AveragedModel(model))
    for epoch in s.epochs():
        ...
        if loss < kept.best:
            kept.best = loss

Without it a start that goes on from a checkpoint begins with `best = inf`, and writes a worse model over the best.

Assigned values are copied: `kept.best_weights = model.state_dict()` are the weights of now. Arguments of `keep` stay
the script's own objects, and a restored state is copied into them. A checkpoint has numbers, text, tensors, lists,
tuples and dicts; an array is a dict that says its kind.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from sublet.errors import BadInput, InvalidValue
from sublet.train.checkpoint.snapshot import require_storable
from sublet.train.sharded.tensors import is_sharded

KEPT = "sublet.kept"
KIND, ITEMS = "sublet.kind", "items"
STATE = "state"  # the kind of what an object with a state says of itself
DEEPEST = 32  # levels; a list that contains itself has no end
PLAIN = (bool, int, float, str)  # and None
ALLOWED = (
    "a number, text, a tensor or an array, or a list, tuple or dict of them; or, by a name of its own, an object with "
    "state_dict() and load_state_dict(), or a generator of torch or numpy"
)
ANOTHER = "keep it under another name, or give a new checkpoint directory"


class Kept:
    """Values by name; only those that `keep` was given."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        kept = vars(self)
        if name not in kept:
            raise InvalidValue("kept", name, f"one of {', '.join(sorted(kept))}, which keep() was given")
        present = kept[name]
        if value is present:  # kept.total += 1 of a tensor: it was changed in place
            return
        if not has_state(present):
            kept[name] = laid(described(f"kept.{name}", value))
        elif has_state(value) and type(value) is type(present):
            load_state(f"kept.{name}", copy.deepcopy(state_of(value)), present)
        else:
            allowed = f"a {type(present).__name__}, whose state it then has, as keep() was given one"
            raise InvalidValue(f"kept.{name}", f"a {type(value).__qualname__}", allowed)

    def __repr__(self) -> str:
        return f"Kept({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Own:
    """The script's part of a state: `extra_state=`, and kept values, beside these models."""

    def __init__(self, extra: Any = None, models: Iterable[torch.nn.Module] = ()) -> None:
        self.extra = extra
        self.kept: Kept | None = None
        self._models, self._begun = tuple(models), False

    def keep(self, values: Mapping[str, Any]) -> Kept:
        """See `Keeps.keep`."""
        if self._begun:
            allowed = "called before the loop: a state that was saved comes with its first batch"
            raise InvalidValue("keep()", "a call after the loop began", allowed)
        if self.kept is not None:
            raise InvalidValue("keep()", "a second call", "called once, with all names: s.keep(best=math.inf, bad=0)")
        if not values:
            raise InvalidValue("keep()", "nothing", "values by name: s.keep(best=math.inf)")
        trained = {
            tensor.untyped_storage().data_ptr()
            for model in self._models
            for tensor in (*model.parameters(), *model.buffers())
            if not is_sharded(tensor)
        }
        self.kept = Kept({name: _taken(f"kept.{name}", value, trained) for name, value in values.items()})
        return self.kept

    def begin(self) -> None:
        """From now on a state may be restored."""
        self._begun = True

    def state_dict(self) -> Any:
        """Both parts; that of `extra_state` alone where nothing is kept."""
        extra = None if self.extra is None else self.extra.state_dict()
        if self.kept is None:
            return extra
        return {KEPT: self.state_of_kept(), "extra": extra}

    def load_state_dict(self, state: Any) -> None:
        """Counterpart of `state_dict`. A state saved before the script kept anything leaves kept values alone."""
        if isinstance(state, Mapping) and KEPT in state:
            self.load_kept(state[KEPT])
            state = state["extra"]
        if self.extra is not None:
            self.extra.load_state_dict(state)

    def state_of_kept(self) -> dict[str, Any]:
        """Copies of kept values; of objects with a state, their state."""
        kept = {} if self.kept is None else vars(self.kept)
        return {
            name: state_of(value) if has_state(value) else described(f"kept.{name}", value)
            for name, value in kept.items()
        }

    def load_kept(self, state: Mapping[str, Any]) -> None:
        """Counterpart of `state_of_kept`; values that the script no longer keeps are left out."""
        kept = {} if self.kept is None else vars(self.kept)
        for name, saved in state.items():
            if name not in kept:
                continue
            if has_state(kept[name]):
                load_state(f"kept.{name}", saved, kept[name])
            else:
                kept[name] = laid(saved, kept[name])


class Keeps:
    """The part of a session, or of `train.checkpointed`, that keeps values for the script."""

    _own: Own

    def keep(self, **values: Any) -> Kept:
        """Values that are part of the state from now on, with what they are at first: `kept.best`.

        Numbers, text, tensors and arrays; lists, tuples and dicts of them; and objects with `state_dict` and
        `load_state_dict`, such as an AveragedModel or a target network. It is called once, before the loop. After
        each of `s.epochs()` all workers have what rank 0 has; in other loops each has its own, and those of rank 0 are
        saved.
        """
        return self._own.keep(values)


def _taken(name: str, value: Any, trained: set[int]) -> Any:
    """The value itself; a copy if it shares memory with a model, which would change it."""
    if any(map(is_sharded, tensors_in(value))):
        raise InvalidValue(name, "a tensor in shards", "whole tensors; what is in shards is a model or an optimizer")
    follows = any(tensor.untyped_storage().data_ptr() in trained for tensor in tensors_in(value) if tensor.numel())
    if not has_state(value):
        copied = described(name, value)
        return laid(copied) if follows else value
    if follows:
        allowed = "an object of its own, such as copy.deepcopy(model): the model itself is in the state already"
        raise InvalidValue(name, f"a {type(value).__qualname__} of what is trained", allowed)
    require_storable({name: state_of(value)})
    return value


def has_state(value: Any) -> bool:
    """Whether it is an object with `state_dict` and `load_state_dict`, or a generator."""
    if isinstance(value, torch.Generator | np.random.Generator):
        return True
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(value, type) and all(callable(method) for method in methods)


def state_of(value: Any) -> dict[str, Any]:
    """The state of such an object: references, not copies."""
    if isinstance(value, torch.Generator):
        return {KIND: STATE, ITEMS: value.get_state()}
    if isinstance(value, np.random.Generator):
        return {KIND: STATE, ITEMS: described("generator", value.bit_generator.state)}
    return {KIND: STATE, ITEMS: value.state_dict()}


def load_state(name: str, saved: Any, into: Any) -> None:
    """Counterpart of `state_of`; BadInput if another kind of value had this name."""
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
    """Restore counters, sets and deques, which a checkpoint has as dicts and lists."""
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
    """Counterpart of `described`: in `into` itself where that is of its kind, else a new value."""
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
        case _:
            pass
    there = into if type(into) is dict else {}
    rows = {key: laid(each, there.get(key)) for key, each in saved.items()}
    there.clear()
    there.update(rows)
    return there


def tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """All tensors in it, at any depth."""
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
