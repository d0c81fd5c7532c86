"""The parts of a training whose tensors are in shards: models, and the optimizers of their parameters.

Names are those of `torch.distributed.checkpoint.state_dict`: `model.0.weight`, `optimizer.state.0.weight.exp_avg`. So
torch's own functions load what is saved here. Values that are no tensors are in the checkpoint's tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sublet.errors import BadInput, InvalidValue
from sublet.train.checkpoint.disk import Folder
from sublet.train.checkpoint.manifest import Manifest
from sublet.train.sharded.dcp import fill, metadata_in
from sublet.train.sharded.tensors import has_shards, is_sharded, trained_by

HINT = "train with the model and the optimizer of the checkpoint, or give a new checkpoint directory"


class Parts:
    """Those with shards among the parts of `train.checkpointed`."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        sharded = {name: part for name, part in parts.items() if has_shards(part)}
        self._models = {name: part for name, part in sharded.items() if isinstance(part, nn.Module)}
        self._optimizers = {name: part for name, part in sharded.items() if name not in self._models}
        self._names = dict[int, str]()  # of parameters: a forward pass may put whole ones in their place for a while
        for name, model in self._models.items():
            prefix = name if len(self._models) > 1 else ""
            self._names |= {id(each): inside for inside, each in model.named_parameters(prefix=prefix)}
        for name, optimizer in self._optimizers.items():
            if any(id(each) not in self._names for each in trained_by(optimizer)):
                allowed = "of parameters of a model that is given, too: train.checkpointed(model=model, ...)"
                raise InvalidValue(name, "an optimizer of other parameters", allowed)

    def __contains__(self, name: str) -> bool:
        return name in self._models or name in self._optimizers

    def state(self) -> dict[str, Any]:
        """All of it, with shards of this rank: references, not copies."""
        models = {name: model.state_dict() for name, model in self._models.items()}
        return models | {name: self._named(name, each) for name, each in self._optimizers.items()}

    def beside(self, name: str) -> dict[str, Any]:
        """Values of a part that are no tensors, and the names of an optimizer's tensors."""
        if name in self._models:
            return {key: value for key, value in self._models[name].state_dict().items() if not _is_tensor(value)}
        named = self._named(name, self._optimizers[name])
        rows = named["state"].items()
        return {
            "param_groups": named["param_groups"],
            "values": {of: {key: value for key, value in row.items() if not _is_tensor(value)} for of, row in rows},
            "tensors": {of: [key for key, value in row.items() if _is_tensor(value)] for of, row in rows},
        }

    def load(self, saved: Mapping[str, Any], folder: Folder, manifest: Manifest) -> None:
        """Take over a state, with `beside` of each part: whatever number of ranks saved it. All ranks call it."""
        about = metadata_in(folder, manifest).state_dict_metadata
        state: dict[str, Any] = {
            name: {key: value for key, value in model.state_dict().items() if _is_tensor(value)}
            for name, model in self._models.items()
        }
        for name, optimizer in self._optimizers.items():
            if [each["params"] for each in saved[name].get("param_groups", ())] != self._groups(optimizer):
                raise BadInput("checkpoint", f"{name} is of other parameters", hint=HINT)
            named = {self._names[id(each)]: each for each in trained_by(optimizer)}
            rows = saved[name]["tensors"].items()
            state[name] = {
                "state": {
                    of: {key: _room(about, f"{name}.state.{of}.{key}", named[of]) for key in keys} for of, keys in rows
                }
            }
        _check(about, state)
        fill(state, folder, manifest)
        for name, model in self._models.items():
            model.load_state_dict({**state[name], **saved[name]})
        for name, optimizer in self._optimizers.items():
            self._give(optimizer, saved[name], state[name]["state"])

    def _named(self, name: str, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        packed, trained = optimizer.state_dict(), list(trained_by(optimizer))
        for index, row in packed["state"].items():
            for key, value in row.items():
                if _is_tensor(value) and is_sharded(value) and value.shape != trained[index].shape:
                    what = f"{key} in shards of another shape than the parameter's"
                    raise InvalidValue(name, what, "an optimizer that takes each number by itself, as AdamW")
        groups = zip(packed["param_groups"], self._groups(optimizer), strict=True)
        return {
            "state": {self._names[id(trained[index])]: row for index, row in packed["state"].items()},
            "param_groups": [{**group, "params": names} for group, names in groups],
        }

    def _groups(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        return [[self._names[id(each)] for each in group["params"]] for group in optimizer.param_groups]

    def _give(self, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        indices = {self._names[id(each)]: index for index, each in enumerate(trained_by(optimizer))}
        groups = [{**each, "params": [indices[of] for of in each["params"]]} for each in saved["param_groups"]]
        state = {indices[of]: {**values, **tensors.get(of, {})} for of, values in saved["values"].items()}
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _room(about: Mapping[str, Any], key: str, parameter: torch.Tensor) -> torch.Tensor:
    """Memory for a tensor of an optimizer: in shards as its parameter is, where it has the same shape."""
    if key not in about:
        raise BadInput("checkpoint", f"without {key}", hint=HINT)
    size, dtype = about[key].size, about[key].properties.dtype
    if size == parameter.shape:
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(size, dtype=dtype)


def _check(about: Mapping[str, Any], state: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in state.items():
        if not _is_tensor(value):
            _check(about, value, f"{prefix}{key}.")
        elif (found := getattr(about.get(f"{prefix}{key}"), "size", None)) != value.shape:
            why = "is not in it" if found is None else f"is {tuple(found)}, not {tuple(value.shape)}"
            raise BadInput("checkpoint", f"of another model: {prefix}{key} {why}", hint=HINT)
