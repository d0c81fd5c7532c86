"""The session alone updates the model while it is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["Guard"]


class Guard:
    """Of its optimizers; it lets anything pass until `begin`."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers, self._updates = optimizers, False
        self._handles: list[Any] = []

    def begin(self) -> None:
        """From now on only `updates` may."""
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._refuse_others))
            vars(optimizer)["zero_grad"] = _nothing  # gradients are ours; a line left over must not clear half a batch

    def end(self) -> None:
        """Everything as it was."""
        for handle in self._handles:
            handle.remove()
        for optimizer in self._optimizers:
            vars(optimizer).pop("zero_grad", None)

    @contextmanager
    def updates(self) -> Iterator[None]:
        """The model is updated here."""
        self._updates = True
        try:
            yield
        finally:
            self._updates = False

    def _refuse_others(self, *_: Any) -> None:
        if not self._updates:
            raise InvalidValue("optimizer.step()", "a call", "left to the session: s.step(...) updates the model")


def _nothing(*_: Any, **__: Any) -> None:
    """In place of zero_grad."""
