"""Who updates the model while a session is open: the session alone. And what was frozen when it began stays so."""

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
        self._model, self._optimizer, self._updates = model, optimizer, False
        self.frozen = self._frozen_now()  # the same at all workers, whatever follows
        self._handles: list[Any] = []

    def begin(self) -> None:
        """From now on only who says so may."""
        self.frozen = self._frozen_now()
        self._handles.append(self._optimizer.register_step_pre_hook(self._look))
        vars(self._optimizer)["zero_grad"] = _nothing  # a line left over must not clear half a batch

    def end(self) -> None:
        """Everything as it was."""
        for handle in self._handles:
            handle.remove()
        vars(self._optimizer).pop("zero_grad", None)

    def check_frozen(self) -> None:
        """What of a unit is sent from worker to worker follows from what was frozen when the session began."""
        thawed = sum(parameter.requires_grad for parameter in self.frozen)
        if thawed:
            allowed = (
                f"as it was when the session began, where the model is trained in stages: {thawed} parameters were "
                "frozen then. Give them a group of the optimizer with lr=0 instead, and raise it later"
            )
            raise InvalidValue("requires_grad", "True", allowed)

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

    def _look(self, *_: Any) -> None:
        if not self._updates and self._handles:
            raise InvalidValue("optimizer.step()", "a call", "left to the session: s.step(batch) updates the model")


def _nothing(*_: Any, **__: Any) -> None:
    """In place of zero_grad."""
