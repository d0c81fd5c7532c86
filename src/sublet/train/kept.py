"""What a script itself remembers from one epoch to the next: part of the state, as weights are.

    kept = s.keep(best=math.inf, bad=0)
    for epoch in s.epochs():
        ...
        if loss < kept.best:
            kept.best = loss

Without it a start that goes on from a checkpoint begins with `best = inf`, and writes a worse model over the best.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["Keeps", "Kept", "Own"]

KEPT = "sublet.kept"


class Kept:
    """Values by name; only those that `keep` was given."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self):
            raise InvalidValue("kept", name, f"one of {', '.join(sorted(vars(self)))}, which keep() was given")
        vars(self)[name] = value

    def __repr__(self) -> str:
        return f"Kept({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Own:
    """All of a state that is the script's own: `extra_state=`, and what it keeps."""

    def __init__(self, extra: Any = None) -> None:
        self.extra = extra
        self.kept: Kept | None = None
        self._begun = False

    def keep(self, values: Mapping[str, Any]) -> Kept:
        """See `Keeps.keep`."""
        if self._begun or self.kept is not None:
            raise InvalidValue("keep()", "a call too late", "called once, before the loop: with it a state comes")
        if not values:
            raise InvalidValue("keep()", "nothing", "values by name: s.keep(best=math.inf)")
        self.kept = Kept(values)
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
        """Copies of what is kept."""
        return {} if self.kept is None else {name: _plain(value) for name, value in vars(self.kept).items()}

    def load_kept(self, state: Mapping[str, Any]) -> None:
        """What `state_of_kept` gave; what the script does not keep any more is left out."""
        if self.kept is not None:
            known = {name: value for name, value in state.items() if name in vars(self.kept)}
            vars(self.kept).update(copy.deepcopy(known))


class Keeps:
    """The part of a session, or of `train.checkpointed`, that remembers for the script."""

    _own: Own

    def keep(self, **values: Any) -> Kept:
        """Values that are part of the state from now on, with what they are at first: `kept.best`.

        Numbers, text, tensors, lists and dicts of them. It is called once, before the loop. After each of `s.epochs()`
        all workers have those of rank 0; in other loops each has its own, and those of rank 0 are saved.
        """
        return self._own.keep(values)


def _plain(value: Any) -> Any:
    """A copy that a checkpoint can hold; numbers of numpy as Python's."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if hasattr(value, "item") else value
