"""Who may call the model and update it while a session is open: the session alone, which knows what of it is here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["Guard"]


class Guard:
    """Of one model and its optimizer; it lets anything pass until `begin`."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._calls = self._updates = False
        self._handles: list[Any] = []

    def begin(self) -> None:
        """From now on only who says so may."""
        self._handles.append(self._optimizer.register_step_pre_hook(self._look_at_update))
        self._handles.append(self._model.register_forward_pre_hook(self._look_at_call))
        vars(self._optimizer)["zero_grad"] = _nothing  # a line left over must not clear half a batch

    def end(self) -> None:
        """Everything as it was."""
        for handle in self._handles:
            handle.remove()
        vars(self._optimizer).pop("zero_grad", None)

    @contextmanager
    def calls(self) -> Iterator[None]:
        """The model is called here."""
        self._calls = True
        try:
            yield
        finally:
            self._calls = False

    @contextmanager
    def updates(self) -> Iterator[None]:
        """It is updated here."""
        self._updates = True
        try:
            yield
        finally:
            self._updates = False

    def _look_at_update(self, *_: Any) -> None:
        if not self._updates:
            raise InvalidValue("optimizer.step()", "a call", "left to the session: s.step(loss_of, batch)")

    def _look_at_call(self, *_: Any) -> None:
        if not self._calls:
            raise InvalidValue(
                "model",
                "a call outside of loss_of",
                "left to the session, since a worker may have a part of the model only: s.evaluate(loss_of, dataset)",
            )


def _nothing(*_: Any, **__: Any) -> None:
    """In place of zero_grad."""
