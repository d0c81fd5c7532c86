"""What was put in the place of something else while it trained, and no state can make again: it is refused.

`model.head = nn.Linear(...)` amid training makes parameters that neither the session nor its optimizer has, and a start
that goes on from a checkpoint builds the old one. So does `model.act = nn.ReLU()`, a hook that is registered in epoch
3, or `dataset.transform = strong`: what a state holds are values, and these are code.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.reach import HOOKS, Place, is_users
from sublet.train.remembered import Remembered

__all__ = ["Replaced"]

INSTEAD = (
    "have both from the beginning, and choose by a plain value (self.stage = 2): such values are part of the state"
)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)


class Replaced:
    """Of a model and its optimizers, since now."""

    def __init__(self, model: torch.nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        self._kinds = {path: type(module) for path, module in model.named_modules()}
        self._own = {path: _methods_of(module) for path, module in model.named_modules()}
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._kept = self._persistent()
        self._hooks = self._registered()
        self._groups = {name: len(each.param_groups) for name, each in optimizers.items()}

    def check(self, places: Iterable[tuple[Place, Mapping[str, Remembered]]]) -> None:
        """InvalidValue, with the name of what is another."""
        self._check_parameters()
        self._check_modules()
        self._check_hooks()
        for name, optimizer in self._optimizers.items():
            if len(optimizer.param_groups) != self._groups[name]:
                raise InvalidValue(
                    f"optimizer {name}".strip(),
                    f"{len(optimizer.param_groups)} groups of parameters",
                    f"the {self._groups[name]} of when the session began: give it all of them then, those that are to "
                    "be trained later with lr=0",
                )
        for place, first in places:
            for name, value in place.items():
                if name in first and _is_other_code(first[name].value, value):
                    raise InvalidValue(
                        f"{place.name.strip()}.{name}",
                        f"{_called(value)} in the place of {_called(first[name].value)}",
                        f"what it was when the session began, since a restart has that again; {INSTEAD}",
                    )

    def made(self) -> dict[str, torch.Tensor]:
        """Buffers of its `state_dict` that a model has made for itself since."""
        return {name: buffer for name, buffer in self._persistent().items() if name not in self._kept}

    def _check_parameters(self) -> None:
        now = dict(self._model.named_parameters(remove_duplicate=False))
        for name in {**self._parameters, **now}:
            if now.get(name) is not self._parameters.get(name):
                path = name.rpartition(".")[0]
                raise InvalidValue(
                    f"model.{name}",
                    "another parameter than when the session began" if name in now else "no parameter any more",
                    "the same one: the session and the optimizer have that, and a restart builds it again. To begin a "
                    f"layer anew, write into it (model.{path}.reset_parameters(), or .copy_() under torch.no_grad()); "
                    "to add one later, build it at the start, with a group of the optimizer of lr=0",
                )
        for name in self._kept.keys() - self._persistent().keys():
            raise InvalidValue(f"model.{name}", "no buffer any more", "there for the whole training")

    def _check_modules(self) -> None:
        now = dict(self._model.named_modules())
        for path, kind in self._kinds.items():
            if type(now.get(path)) is not kind:
                found = "gone" if path not in now else type(now[path]).__name__
                raise InvalidValue(
                    f"model.{path}",
                    f"{found}, where a {kind.__name__} was when the session began",
                    f"that one for the whole training, since a restart builds it again; {INSTEAD}",
                )
            if new := _methods_of(now[path]) - self._own[path]:
                raise InvalidValue(
                    f"model.{path}.{min(new)}".replace("..", "."),
                    "a function of its own, in the place of the method",
                    f"what it was when the session began, since a restart has that again; {INSTEAD}",
                )

    def _check_hooks(self) -> None:
        now = self._registered()
        if now != self._hooks:
            path = next(name for name in {**self._hooks, **now} if now.get(name) != self._hooks.get(name))
            raise InvalidValue(
                f"hooks of model.{path}".rstrip("."),
                "others than when the session began",
                "registered before the session, and removed after it: a restart has those again. "
                f"For one that works later, {INSTEAD}",
            )

    def _registered(self) -> dict[str, list[Any]]:
        """Hooks of the script's own, by module; each by what it does."""
        found: dict[str, list[Any]] = {}
        for path, module in self._model.named_modules():
            given = [hook for name in HOOKS for hook in (vars(module).get(name) or {}).values()]
            if own := [_deed(hook) for hook in given if is_users(_module_of(hook))]:
                found[path] = own
        return found

    def _persistent(self) -> dict[str, torch.Tensor]:
        return {
            f"{path}.{name}".lstrip("."): buffer
            for path, module in self._model.named_modules()
            for name, buffer in module._buffers.items()  # noqa: SLF001 - torch's public look at them says not which are saved
            if buffer is not None and name not in module._non_persistent_buffers_set  # noqa: SLF001 - as above
        }


def _methods_of(module: torch.nn.Module) -> set[str]:
    """Those that are its own, and not those of its class."""
    return {
        name for name, value in vars(module).items() if callable(value) and callable(getattr(type(module), name, None))
    }


def _is_other_code(was: Any, now: Any) -> bool:
    """Whether one thing that can be called is another; values within it are looked at elsewhere."""
    if was is now or not (callable(was) and callable(now)):
        return False
    return bool(_deed(was) != _deed(now))


def _deed(thing: Any) -> Any:
    """By which two are the same: the code of a function, the kind of an object."""
    if isinstance(thing, types.MethodType):
        return _deed(thing.__func__)
    if isinstance(thing, functools.partial):
        return functools.partial, _deed(thing.func)
    if isinstance(thing, types.FunctionType):
        return thing.__code__
    return thing if isinstance(thing, FUNCTIONS) else type(thing)


def _module_of(hook: Any) -> str | None:
    hook = getattr(hook, "func", hook)  # of a partial
    module = getattr(hook, "__module__", None)
    return module if isinstance(module, str) else type(hook).__module__


def _called(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))
