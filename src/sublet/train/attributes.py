"""What a training remembers beside its `state_dict`s: values that a script changes while it trains.

`model[1].eval()`, `layer.requires_grad_(False)`, `model.temperature *= 0.8`, `self.calls += 1` in a forward, in a
dataset or in a `collate_fn`, a list of a hook, a buffer that is not persistent, `optimizer.defaults["lr"] *= 0.5`: all
of it steers training, and none of it is in a `state_dict`. A start that goes on from a checkpoint would begin with it
as the script has built it, without a word.

Only what differs from how it was when the session began is in the state. So a setting that was edited between two
starts stays edited. Values are compared when a state is taken; steps cost nothing. What cannot be in a state, such as
a module that was replaced by another, is refused (`replaced`).
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from sublet.train.reach import Place, places_of, remembered
from sublet.train.remembered import FACT, GONE, HELD, LONG, OTHER, PLAIN, Remembered, is_gone, kind_of, meant, told
from sublet.train.replaced import Replaced
from sublet.train.values import CONTAINERS, has_dice, tensors_in

__all__ = ["OTHERS", "Attributes"]

OTHERS = "others"  # in a state: held by other objects than at first
SHARED = "shared"  # in a state: of these, where the very same list or dict is, too: a place and a name

SHAREABLE = CONTAINERS - {tuple, frozenset}  # what is written into at one place is another at all of them

# Objects that are not opened, or built, but only say something.
FACTS = (torch.Tensor, torch.dtype, torch.device, torch.Size, np.generic, enum.Enum, PurePath)


class Attributes:
    """Of a model, its optimizers by name, and other things that are called, since now."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self._model, self._optimizers, self._others = model, dict(optimizers), dict(others or {})
        self._parts = {
            tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()
        }
        self.places: list[Place] = []  # as they were found when somebody looked last
        self._first = remembered(self._places())
        self._homes = {place.name: place.values for place in self.places}
        self._trained = {name: (each, each.requires_grad) for name, each in model.named_parameters()}
        self._buffers = {name: Remembered(buffer) for name, _, _, buffer in _unsaved(model)}
        self._replaced = Replaced(model, self._optimizers)
        self._told: set[str] = set()  # what was said of
        self._say_iterators()

    def check(self) -> None:
        """InvalidValue if something is another that no state can make again."""
        self._check(self._places())

    def state_dict(self) -> dict[str, Any]:
        """What has changed; of tensors references, not copies."""
        places = self._places()
        self._check(places)
        found: dict[str, dict[str, Any]] = {PLAIN: {}, HELD: {}, OTHERS: {}, SHARED: {}}
        holders = self._holders(places)
        for place in places:
            first = self._first.get(place.name, {})
            for name, value in self._changed(place):
                found[kind_of(value)].setdefault(place.name, {})[name] = told(value)
                if kind_of(value) == HELD and not (name in first and first[name].value is value):
                    found[OTHERS].setdefault(place.name, []).append(name)
                    holder = holders.get(id(value), [place.name, name])
                    if holder != [place.name, name]:
                        found[SHARED].setdefault(place.name, {})[name] = holder
            for name in self._gone(place):
                found[PLAIN].setdefault(place.name, {})[name] = GONE
        return {
            **found,
            "trained": {
                name: each.requires_grad for name, (each, was) in self._trained.items() if each.requires_grad != was
            },
            "buffers": {
                name: buffer for name, _, _, buffer in _unsaved(self._model) if not self._is_as_before(name, buffer)
            },
            "made": self._replaced.made(),
        }

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Before the model is given its part of a state: buffers that it made for itself are there."""
        for name, buffer in state.get("made", {}).items():
            path, _, own = name.rpartition(".")
            module = dict(self._model.named_modules()).get(path)
            if module is not None and module._buffers.get(own) is None:  # noqa: SLF001 - as torch names them
                device = next((each.device for each in self._model.parameters()), buffer.device)
                module.register_buffer(own, buffer.to(device, copy=True))

    def load_state_dict(self, state: Mapping[str, Any], of: Callable[[str], bool] = lambda _: True) -> None:
        """What `state_dict` gave; all else is as it was at first. What this model does not have is left out.

        `of`: by names of places, parameters and buffers; the rest is left alone.
        """
        for place in filter(lambda each: of(each.name), self._places()):
            self._lay_in(place, state)
        self._share(state.get(SHARED, {}), of)
        for name, (parameter, was) in self._trained.items():
            if of(name):
                parameter.requires_grad_(state["trained"].get(name, was))
        for name, module, own, buffer in filter(lambda each: of(each[0]), _unsaved(self._model)):
            _lay(module, own, buffer, state["buffers"].get(name), self._buffers.get(name))

    def _lay_in(self, place: Place, state: Mapping[str, Any]) -> None:
        saved = {**state[PLAIN].get(place.name, {}), **state.get(HELD, {}).get(place.name, {})}
        first, kinds = self._first.get(place.name, {}), {PLAIN, HELD} if HELD in state else {PLAIN}
        present = {name: value for name, value in place.items() if self._kind(value) in kinds}
        others = state.get(OTHERS, {}).get(place.name, ())
        for name in {*saved, *present, *self._gone(place)}:
            if name in saved and is_gone(saved[name]):
                place.values.pop(name, None)
            elif name in saved:
                there = place.values.get(name)
                # What was another object then must not be written into one that may be somebody else's, too.
                into = None if name in others and not has_dice(there) else there
                kind = type(first[name].value) if name in first else None
                place.values[name] = meant(saved[name], into, kind)
            elif name in first:
                was = first[name].again(present.get(name))
                if name not in present or was is not present[name]:
                    place.values[name] = was
            elif kind_of(present[name]) == PLAIN:
                del place.values[name]

    def _holders(self, places: list[Place]) -> dict[int, list[str]]:
        """Of each list and dict the place and the name that tell of it: where it was at first, or is first."""
        found: dict[int, list[str]] = {}
        held = [(place.name, *each) for place in places for each in place.items() if type(each[1]) in SHAREABLE]
        for at_first in (True, False):
            for place, name, value in held:
                was = self._first.get(place, {}).get(name)
                if (was is not None and was.value is value) == at_first:
                    found.setdefault(id(value), [place, name])
        return found

    def _share(self, shared: Mapping[str, Mapping[str, Any]], of: Callable[[str], bool]) -> None:
        """One list in several attributes, as it was, if all have come to hold the same."""
        places = {place.name: place.values for place in self.places}
        for place in filter(lambda each: of(each.name), self.places):
            for name, (where, called) in shared.get(place.name, {}).items():
                one, other = places.get(where, {}).get(called), place.values.get(name)
                if type(one) in SHAREABLE and Remembered(one).is_still(other):
                    place.values[name] = one

    def lay(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """These, by the names of their places, which have been looked for; all else is left as it is."""
        for place in self.places:
            first = self._first.get(place.name, {})
            for name, value in values.get(place.name, {}).items():
                if is_gone(value):
                    place.values.pop(name, None)
                    continue
                # A list that was another one then must not be written into that of now, which somebody may have.
                into = place.values.get(name) if isinstance(value, Mapping) and FACT in value else None
                place.values[name] = meant(value, into, type(first[name].value) if name in first else None)

    def also(self, others: Mapping[str, Any]) -> None:
        """What else is called, from now on."""
        self._others |= others
        found = remembered(self._places())
        self._homes = {place.name: place.values for place in self.places} | self._homes
        for place, values in found.items():
            first = self._first.setdefault(place, {})  # of a file's names more may be asked for now than before
            for name, value in values.items():
                first.setdefault(name, value)

    def _say_iterators(self) -> None:
        """Nobody can say where one is, nor take it there."""
        for place in self._places():
            for name, value in place.items():
                if isinstance(value, types.GeneratorType) or type(value).__module__ == "itertools":
                    why = "is an iterator, and where it is no state can say: after a restart it begins anew"
                    self._warn(f"{place.name.strip()}.{name}", why)

    def _check(self, places: list[Place]) -> None:
        self._replaced.check((place, self._first.get(place.name, {})) for place in places)

    def _places(self) -> list[Place]:
        roots: list[tuple[str, Any]] = [(f"module {name}", each) for name, each in self._model.named_modules()]
        roots += [(f"optimizer {name}", each) for name, each in self._optimizers.items()]
        roots += _hooks_of_parameters(self._model)
        defaults = [Place(f"defaults {name}", each.defaults) for name, each in self._optimizers.items()]
        self.places = [*places_of([*roots, *self._others.items()]), *defaults]
        return self.places

    def had(self, place: str, name: str) -> bool:
        """Whether there was such a value at first: then it can be laid again."""
        return name in self._first.get(place, {})

    def _gone(self, place: Place) -> list[str]:
        """What was there at first and has been deleted, of an object that is still the same."""
        if type(place.values) is not dict or place.values is not self._homes.get(place.name):
            return []
        first = self._first.get(place.name, {})
        return [name for name, was in first.items() if name not in place.values and was.kind in (PLAIN, HELD)]

    def _changed(self, place: Place) -> Iterator[tuple[str, Any]]:
        first = self._first.get(place.name, {})
        items = [each for each in place.items() if each[0] not in first or not first[each[0]].is_itself(each[1])]
        # A flag that says that a file is open must not come back without the file.
        lacks = any(
            kind_of(value) == OTHER
            and not (callable(value) or isinstance(value, FACTS))
            and (name not in first or first[name].is_nothing)
            for name, value in items
        )
        for name, value in items:
            was, kind = first.get(name), self._kind(value)
            if kind == OTHER or (was is not None and was.is_still(value)):
                continue
            if has_dice(value) and not (was is not None and has_dice(was.value)):
                why = "is made while it trains, and its random numbers are not part of the state: make it before"
                self._warn(f"{place.name.strip()}.{name}", why)
            elif kind == LONG:
                why = "changes while it trains, and is too large for the state: a restart has it as the script makes it"
                self._warn(f"{place.name.strip()}.{name}", why)
            elif not lacks or name == "training" or (was is not None and not was.is_nothing):
                yield name, value

    def _kind(self, value: Any) -> str:
        """What lies in the memory of the model is a part of it."""
        kind = kind_of(value)
        if kind == HELD and any(_where(tensor) in self._parts for tensor in tensors_in(value) if tensor.numel()):
            return OTHER
        return kind

    def _is_as_before(self, name: str, buffer: torch.Tensor) -> bool:
        return name in self._buffers and self._buffers[name].is_still(buffer)

    def _warn(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            print(f"sublet: {name} {why}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process


def _hooks_of_parameters(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """What the script has hung on weights: nobody else has it in hand."""
    return [
        (f"hook {name} {kind[1:]} {number}", hook)
        for name, parameter in model.named_parameters()
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
        for number, hook in enumerate((getattr(parameter, kind, None) or {}).values())
    ]


def _where(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _unsaved(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Buffers that a module keeps out of its `state_dict`."""
    for path, module in model.named_modules():
        for name in sorted(module._non_persistent_buffers_set):  # noqa: SLF001 - nothing else of torch says it
            buffer = module._buffers.get(name)  # noqa: SLF001 - as above
            if buffer is not None:
                yield f"{path}.{name}", module, name, buffer


def _lay(
    module: torch.nn.Module, name: str, now: torch.Tensor, saved: torch.Tensor | None, first: Remembered | None
) -> None:
    """Into the tensor that is there, if it is of this kind; without one that was saved: as it was."""
    if saved is None:
        if first is not None:
            module._buffers[name] = first.again(now)  # noqa: SLF001 - torch's public look at them makes lists of all
        return
    if (now.shape, now.dtype) == (saved.shape, saved.dtype) and not now.is_inference():
        with torch.no_grad():
            now.copy_(saved)
    else:
        module._buffers[name] = saved.to(now.device, copy=True)  # noqa: SLF001 - as above
