"""What models and optimizers remember beside their `state_dict`: plain values that a script changes while it trains.

`model[1].eval()`, `layer.requires_grad_(False)`, `model.temperature *= 0.8`, `self.calls += 1` in a forward, a buffer
that is not persistent, `optimizer.defaults["lr"] *= 0.5`: all of it steers training, and none of it is in a
`state_dict`. A start that goes on from a checkpoint would begin with it as the script has built it, without a word.

Only what differs from how it was when the session began is in the state. So a setting that was edited between two
starts stays edited. Values are compared when a state is taken; steps cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["Attributes"]

PLAIN = (bool, int, float, str, type(None))
NUMPY = "numpy"  # in a state: the type of a number that is numpy's
TORCHS = frozenset(vars(torch.nn.Module())) - {"training"}  # what torch keeps in every module
SMALL = 1 << 20  # numbers in a buffer that is compared; of a larger one torch's count of writes is


class Attributes:
    """Of a model and its optimizers by name, since now."""

    def __init__(self, model: torch.nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._places: dict[str, dict[str, Any]] = {f"module {name}": vars(each) for name, each in model.named_modules()}
        for name, optimizer in optimizers.items():
            self._places |= {f"optimizer {name}": vars(optimizer), f"defaults {name}": optimizer.defaults}
        self._first = {place: dict(_plain_in(values)) for place, values in self._places.items()}
        self._trained = {name: (each, each.requires_grad) for name, each in model.named_parameters()}
        self._buffers = {name: _Buffer(module, own) for name, module, own in _unsaved(model)}

    def state_dict(self) -> dict[str, Any]:
        """What has changed; of buffers references, not copies."""
        plain = {
            place: {name: _told(value) for name, value in _plain_in(values) if self._is_new(place, name, value)}
            for place, values in self._places.items()
        }
        return {
            "plain": {place: values for place, values in plain.items() if values},
            "trained": {
                name: each.requires_grad for name, (each, was) in self._trained.items() if each.requires_grad != was
            },
            "buffers": {name: each.now for name, each in self._buffers.items() if each.has_changed},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave; all else is as it was at first. What this model does not have is left out."""
        for place, values in self._places.items():
            saved, first = state["plain"].get(place, {}), self._first[place]
            for name in {*saved, *(name for name, _ in _plain_in(values))}:
                if name in saved:
                    values[name] = _meant(saved[name])
                elif name in first:
                    values[name] = first[name]
                else:
                    del values[name]
        for name, (parameter, was) in self._trained.items():
            parameter.requires_grad_(state["trained"].get(name, was))
        for name, buffer in self._buffers.items():
            buffer.lay(state["buffers"].get(name))

    def _is_new(self, place: str, name: str, value: Any) -> bool:
        first = self._first[place]
        # By their text: of numbers it is exact, and tells -0.0 from 0.0, True from 1, and not a nan from itself.
        return name not in first or repr(value) != repr(first[name])


class _Buffer:
    """One that a module keeps out of its `state_dict`."""

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        self._module, self._name = module, name
        self._first = self.now
        self._version = _version(self._first)
        self._copy = self._first.detach().clone() if self._first.numel() <= SMALL else None

    @property
    def now(self) -> torch.Tensor:
        """As the module has it; what it had at first, if it has none any more."""
        found = self._module._buffers.get(self._name)  # noqa: SLF001 - torch's public look at them makes lists of all
        return self._first if found is None else found

    @property
    def has_changed(self) -> bool:
        """Since the session began."""
        now = self.now
        if self._copy is None:
            return now is not self._first or _version(now) != self._version
        alike = (now.shape, now.dtype) == (self._copy.shape, self._copy.dtype)
        return not (alike and torch.equal(now, self._copy.to(now.device)))

    def lay(self, saved: torch.Tensor | None) -> None:
        """Into the tensor that is there, if it is of this kind; None: as it was, of which a large one has no copy."""
        source = self._copy if saved is None else saved
        if source is None or (saved is None and not self.has_changed):
            return
        now = self.now
        if (now.shape, now.dtype) == (source.shape, source.dtype):
            with torch.no_grad():
                now.copy_(source)
        else:
            self._module._buffers[self._name] = source.to(now.device, copy=True)  # noqa: SLF001 - as above


def _unsaved(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    for path, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):  # noqa: SLF001 - nothing else of torch says it
            if module._buffers.get(name) is not None:  # noqa: SLF001 - as above
                yield f"{path}.{name}", module, name


def _version(tensor: torch.Tensor) -> int:
    """How often it was written to; torch does not count it for those of inference mode."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch counts what is done to it


def _plain_in(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a state can hold as it is, and is not torch's own."""
    for name, value in values.items():
        if name not in TORCHS and (
            type(value) in PLAIN or (isinstance(value, np.generic) and value.dtype.kind in "biuf")
        ):
            yield name, value


def _told(value: Any) -> Any:
    return {NUMPY: value.dtype.name, "value": value.item()} if isinstance(value, np.generic) else value


def _meant(saved: Any) -> Any:
    return np.dtype(saved[NUMPY]).type(saved["value"]) if isinstance(saved, Mapping) else saved
