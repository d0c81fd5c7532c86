"""The whole state, out of units that lie with many: as a session of one worker writes it down, and back into units.

A checkpoint of a grid is one of the plain session, whose segments are the units, each as it lies in memory (`arena`).
So any grid loads what any other has saved, and so does a worker alone; there is one format, and one reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import torch

from sublet.errors import BadInput
from sublet.train.checkpoint.snapshot import DTYPES, Elsewhere, TensorPlace
from sublet.train.grid.arena import Field
from sublet.train.grid.course import settings_of
from sublet.train.grid.holdings import Holdings
from sublet.train.grid.stages import Staged
from sublet.train.state.state import Progress, State

__all__ = ["Whole"]

Key = str | tuple[int, str]  # of a weight its name; of a moment the number of its parameter, and its name
NAMES = {dtype: name for name, dtype in DTYPES.items()}
HINT = "train with the model and the optimizer of the checkpoint, or give a new checkpoint directory"


class Whole:
    """Of one worker, which holds some of the units. `state` knows of what else a checkpoint has."""

    def __init__(
        self,
        state: State,
        progress: Progress,
        staged: Staged,
        holdings: Holdings,
        loss: Callable[[], float],
    ) -> None:
        self._state, self._progress, self._staged, self._holdings, self._loss = state, progress, staged, holdings, loss

    def places(self, *, stepped: bool) -> tuple[TensorPlace, ...]:
        """Of all tensors of all units: unit by unit, each as it lies there."""
        return tuple(place for _, place in self._laid(stepped=stepped))

    def tree(self, counted: Sequence[torch.Tensor], *, stepped: bool) -> dict[str, Any]:
        """As the plain session has it, with `Elsewhere` in place of what is in units, by its number in `places`.

        `counted`, of each unit, by whoever holds it: of which parameters the optimizer keeps anything.
        """
        at = {key: number for number, (key, _) in enumerate(self._laid(stepped=stepped))}
        tree, model = self._state.tree(self._progress), self._staged.model
        own = {id(each): name for name, each in model.named_parameters()}
        named = {name: own[id(each)] for name, each in model.named_parameters(remove_duplicate=False)}
        tree["model"] = {
            name: Elsewhere(at[named[name]]) if name in named else tensor for name, tensor in tree["model"].items()
        }
        tree["optimizer"] = self._optimizer(at, counted, stepped=stepped)
        return {**tree, "loss": self._loss()}

    def beside(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """What of a saved tree all members need, whatever they hold; BadInput if this training cannot go on from it."""
        self._state.check(tree, self._progress)
        model = self._staged.model
        wanted = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        buffers = {name for name in model.state_dict() if name not in wanted}
        if {*tree["model"]} != wanted | buffers:
            differs = sorted({*tree["model"]} ^ (wanted | buffers))
            raise BadInput("checkpoint", f"of another model: {', '.join(differs[:5])}", hint=HINT)
        groups = tree["optimizer"].get("param_groups", [])  # of several optimizers there are none
        if [len(each["params"]) for each in groups] != [len(each) for each in self._holdings.groups]:
            raise BadInput("checkpoint", f"of another optimizer: {len(groups)} groups of parameters", hint=HINT)
        return {
            "progress": {name: value for name, value in tree["progress"].items() if name != "noise"},
            "schedulers": tree["schedulers"],
            "settings": settings_of(groups),
            "frozen": tree.get("frozen"),
            "extra": tree["extra"],
            "random": tree["random"],
            "dice": tree.get("dice"),  # one of an earlier version has none
            "buffers": {name: tree["model"][name] for name in sorted(buffers)},
            "loss": tree.get("loss", math.nan),  # a session without parts says none
        }

    def fill(self, memory: torch.Tensor, unit: int, tree: Mapping[str, Any], *, stepped: bool) -> None:
        """A unit of a saved tree, as it lies in memory; BadInput if it is of another shape."""
        layout = self._holdings.layout(unit, stepped=stepped)
        names, parameters = self._staged.units[unit].names, self._holdings.parameters[unit]
        state, indices = tree["optimizer"]["state"], self._holdings.indices
        memory.zero_()
        for name, field in zip(names, layout.weights, strict=True):
            _copy(tree["model"][name], field, memory, name)
        for owner, (moment, field) in zip(layout.owners, layout.moments, strict=True):
            saved = state.get(indices[id(parameters[owner])], {}).get(moment)
            if saved is not None:  # one that never had a gradient has none yet
                _copy(saved, field, memory, f"{moment} of {names[owner]}")
        states = [state.get(indices.get(id(each)), {}) for each in parameters]
        layout.counted.seen_in(memory).copy_(layout.counted_of(states))

    def _laid(self, *, stepped: bool) -> Iterator[tuple[Key, TensorPlace]]:
        for unit, each in enumerate(self._staged.units):
            layout, parameters = self._holdings.layout(unit, stepped=stepped), self._holdings.parameters[unit]
            for name, field in zip(each.names, layout.weights, strict=True):
                yield name, _place(unit, field)
            for owner, (moment, field) in zip(layout.owners, layout.moments, strict=True):
                yield (self._holdings.indices[id(parameters[owner])], moment), _place(unit, field)

    def _optimizer(self, at: Mapping[Key, int], counted: Sequence[torch.Tensor], *, stepped: bool) -> dict[str, Any]:
        """As its state_dict would be if all of it were here: nothing of a parameter that never had a gradient."""
        groups, state, indices = (
            settings_of(self._holdings.optimizer.param_groups),
            dict[int, dict[str, Any]](),
            count(),
        )
        for group, everything in zip(groups, self._holdings.groups, strict=True):
            group["params"] = list(islice(indices, len(everything)))
        for unit, rows in enumerate(counted):
            parameters = self._holdings.parameters[unit]
            for number, counters in self._holdings.layout(unit, stepped=stepped).counters_in(rows).items():
                state[self._holdings.indices[id(parameters[number])]] = counters
        for key, index in at.items():
            if isinstance(key, tuple) and key[0] in state:
                state[key[0]][key[1]] = Elsewhere(index)
        return {"state": dict(sorted(state.items())), "param_groups": groups}


def _place(unit: int, field: Field) -> TensorPlace:
    return TensorPlace(dtype=NAMES[field.dtype], shape=tuple(field.shape), segment=unit, start=field.start)


def _copy(saved: torch.Tensor, field: Field, memory: torch.Tensor, name: str) -> None:
    if saved.shape != field.shape or saved.dtype != field.dtype:
        why = f"of another model: {name} is {tuple(saved.shape)} of {saved.dtype}, not {tuple(field.shape)}"
        raise BadInput("checkpoint", why, hint=HINT)
    field.seen_in(memory).copy_(saved)
