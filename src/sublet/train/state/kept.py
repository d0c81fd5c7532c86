"""What a script itself remembers from one epoch to the next: part of the state, as weights are.

    kept = s.keep(best=math.inf, bad=0, average=AveragedModel(model))
    for epoch in s.epochs():
        ...
        if loss < kept.best:
            kept.best = loss

Without it a start that goes on from a checkpoint begins with `best = inf`, and writes a worse model over the best.

What is assigned is copied: `kept.best_weights = model.state_dict()` are those of now, and not of every step after it.
What `keep` was given is the script's own object, and a state is laid into it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.checkpoint.snapshot import require_storable
from sublet.train.state.values import described, has_state, laid, load_state, state_of, tensors_in

__all__ = ["Keeps", "Kept", "Own"]

KEPT = "sublet.kept"


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
    """All of a state that is the script's own: `extra_state=`, and what it keeps, beside these models."""

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
        }
        self.kept = Kept({name: _taken(f"kept.{name}", value, trained) for name, value in values.items()})
        return self.kept

    def begin(self) -> None:
        """From now on a state may come."""
        self._begun = True

    def state_dict(self) -> Any:
        """Of both; as `extra_state` alone gives it where nothing is kept."""
        extra = None if self.extra is None else self.extra.state_dict()
        if self.kept is None:
            return extra
        return {KEPT: self.state_of_kept(), "extra": extra}

    def load_state_dict(self, state: Any) -> None:
        """What `state_dict` gave. One that was saved before the script kept anything leaves that as it is."""
        if isinstance(state, Mapping) and KEPT in state:
            self.load_kept(state[KEPT])
            state = state["extra"]
        if self.extra is not None:
            self.extra.load_state_dict(state)

    def state_of_kept(self) -> dict[str, Any]:
        """Copies of what is kept; of objects with a state, what they say."""
        kept = {} if self.kept is None else vars(self.kept)
        return {
            name: state_of(value) if has_state(value) else described(f"kept.{name}", value)
            for name, value in kept.items()
        }

    def load_kept(self, state: Mapping[str, Any]) -> None:
        """What `state_of_kept` gave; what the script does not keep any more is left out."""
        kept = {} if self.kept is None else vars(self.kept)
        for name, saved in state.items():
            if name not in kept:
                continue
            if has_state(kept[name]):
                load_state(f"kept.{name}", saved, kept[name])
            else:
                kept[name] = laid(saved, kept[name])


class Keeps:
    """The part of a session, or of `train.checkpointed`, that remembers for the script."""

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
    """As it is; but a copy of what lies in the memory of a model, which would follow it."""
    follows = any(tensor.untyped_storage().data_ptr() in trained for tensor in tensors_in(value) if tensor.numel())
    if not has_state(value):
        copied = described(name, value)
        return laid(copied) if follows else value
    if follows:
        allowed = "an object of its own, such as copy.deepcopy(model): the model itself is in the state already"
        raise InvalidValue(name, f"a {type(value).__qualname__} of what is trained", allowed)
    require_storable({name: state_of(value)})
    return value
