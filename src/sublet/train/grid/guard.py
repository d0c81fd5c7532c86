"""Who may call the model and update it while a session is open: the session alone, which knows what of it is here."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.fitness import check_frozen
from sublet.train.grid.absent import MOMENTS, Absent, moments_elsewhere, plainly

__all__ = ["Guard", "Held", "Moments"]

LISTS = ("parameters", "named_parameters")
OURS = ("sublet.train", "torch.nn.modules.module", "torch.optim.optimizer")  # which ask for one by the other


class Guard:
    """Of one model and its optimizer; it lets anything pass until `begin`."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._calls = self._updates = False
        self.frozen = self._frozen_now()  # of the parameters, when it began: the same at all workers, whatever follows
        self._buffers: list[tuple[str, torch.nn.Module, str]] = []  # that are a part of the state: name, owner and key
        self._handles: list[Any] = []

    def begin(self) -> None:
        """From now on only who says so may."""
        self.frozen = self._frozen_now()
        self._buffers = list(_buffers_of(self._model))
        self._handles.append(self._optimizer.register_step_pre_hook(self._look_at_update))
        self._handles.append(self._model.register_forward_pre_hook(self._look_at_call))
        vars(self._optimizer)["zero_grad"] = _nothing  # a line left over must not clear half a batch
        vars(self._optimizer)["state_dict"] = _Stated(self._optimizer)
        for name in LISTS:
            vars(self._model)[name] = _Listed(getattr(self._model, name))

    def end(self) -> None:
        """Everything as it was, but for an optimizer that has a part of its state: it has no more than that."""
        for handle in self._handles:
            handle.remove()
        vars(self._optimizer).pop("zero_grad", None)
        if not isinstance(self._optimizer.state, Moments):
            vars(self._optimizer).pop("state_dict", None)
        for name in LISTS:
            vars(self._model).pop(name, None)

    def check_frozen(self) -> None:
        """What was frozen when it began still is: what a unit is made of follows from that, at all workers alike."""
        with plainly():  # at every step, of whatever others have
            check_frozen(self.frozen)

    @contextmanager
    def calls(self) -> Iterator[None]:
        """The model is called here."""
        self._calls = True
        before = self._written() if torch.is_grad_enabled() else []
        try:
            yield
        finally:
            self._calls = False
            if before:
                self._check_buffers(before)

    @contextmanager
    def updates(self) -> Iterator[None]:
        """It is updated here."""
        self._updates = True
        try:
            yield
        finally:
            self._updates = False

    def _frozen_now(self) -> list[torch.nn.Parameter]:
        return [each for each in self._model.parameters() if not each.requires_grad]

    def _written(self) -> list[tuple[torch.Tensor, int]]:
        """What the model keeps beside its parameters, and how often each was written: at each call, it costs little."""
        found = (module._buffers[key] for _, module, key in self._buffers)  # noqa: SLF001 - torch's own, as they are now
        return [(each, each._version) for each in found if each is not None]  # noqa: SLF001 - torch's own count

    def _check_buffers(self, before: list[tuple[torch.Tensor, int]]) -> None:
        for (name, _, _), was, now in zip(self._buffers, before, self._written(), strict=True):
            if was[0] is not now[0] or was[1] != now[1]:
                allowed = (
                    "one that the forward does not change where the model is cut: each copy, and each part, would have "
                    "its own. Compute it from the batch, or register_buffer(..., persistent=False) if it is but a cache"
                )
                raise InvalidValue("buffer", name, allowed)

    def _look_at_update(self, *_: Any) -> None:
        if not self._updates:
            raise InvalidValue("optimizer.step()", "a call", "left to the session: s.step(batch)")

    def _look_at_call(self, *_: Any) -> None:
        if not self._calls:
            raise InvalidValue(
                "model",
                "a call outside of loss_of",
                "left to the session, since a worker may have a part of the model only: s.evaluate(dataset)",
            )


def _buffers_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    for name, module in model.named_modules():
        for key, buffer in module._buffers.items():  # noqa: SLF001 - torch tells neither whose they are nor which count
            if buffer is not None and key not in module._non_persistent_buffers_set:  # noqa: SLF001 - as above
                yield f"{name}.{key}".lstrip("."), module, key


class _Listed:
    """In place of `model.parameters`: of others than us nobody gets further than the first, which tells the device."""

    def __init__(self, whole: Callable[..., Iterator[Any]]) -> None:
        self._whole, self._first = whole, next(iter(whole()), None)

    def __call__(self, *args: Any, **facts: Any) -> Iterator[Any]:
        return self._whole(*args, **facts) if _is_ours(sys._getframe(1)) else _alone(self._first)  # noqa: SLF001 - the one way

    def __deepcopy__(self, memo: dict[int, Any]) -> _Listed:
        return self


class Held(list[Any]):
    """Of a group of the optimizer's parameters those that are here: nobody else takes them for all of the group."""

    updates = False  # the optimizer makes a step, whoever has written it

    def __iter__(self) -> Iterator[Any]:
        if self.updates or _is_ours(sys._getframe(1)):  # noqa: SLF001 - the one way to know
            return super().__iter__()
        return _alone(*self[:1])


class Moments(defaultdict[Any, Any]):
    """What the optimizer keeps of the parameters that are here: nobody else takes it for all of its state."""

    updates = False  # as of `Held`

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, Absent):
            raise moments_elsewhere(key)
        return super().__missing__(key)

    def items(self) -> Any:
        """For those who know that it is a part."""
        self._check(sys._getframe(1))  # noqa: SLF001 - the one way to know
        return super().items()

    def values(self) -> Any:
        """As `items`."""
        self._check(sys._getframe(1))  # noqa: SLF001 - as above
        return super().values()

    def _check(self, asks: FrameType) -> None:
        if not self.updates and not _is_ours(asks):
            raise InvalidValue("parts", "all that the optimizer keeps", MOMENTS)


class _Stated:
    """In place of `optimizer.state_dict`, which has a part of it where the model is one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._whole = optimizer, optimizer.state_dict

    def __call__(self) -> dict[str, Any]:
        if isinstance(self._optimizer.state, Moments) and not _is_ours(sys._getframe(1)):  # noqa: SLF001 - the one way
            raise InvalidValue("parts", "optimizer.state_dict()", MOMENTS)
        return self._whole()


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(OURS)


def _alone(*first: Any) -> Iterator[Any]:
    yield from first
    raise InvalidValue(
        "parts",
        "a look at all parameters of the model",
        "left to the session, since a worker has those of its part: weight_decay of the optimizer in place of a "
        "penalty, clip_norm= in place of a clip; averages of weights, and limits on them, cannot be had with parts=",
    )


def _nothing(*_: Any, **__: Any) -> None:
    """In place of zero_grad."""
