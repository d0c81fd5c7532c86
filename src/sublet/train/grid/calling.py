"""The user's function, as a session calls it: where the model may be called, with a micro-batch, and looked at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sublet.train.fitness import check_loss, check_shape
from sublet.train.grid.atoms import Atom
from sublet.train.grid.guard import Guard

__all__ = ["Calling", "LossOf"]

LossOf = Callable[[Any], torch.Tensor]


class Calling:
    """Of one session."""

    def __init__(self, guard: Guard) -> None:
        self._guard, self._looked = guard, False

    def __call__(self, loss_of: LossOf, batch: Any, atom: Atom) -> torch.Tensor:
        """The mean loss of one micro-batch."""
        with self._guard.calls():
            loss = loss_of(batch)
        check_shape(loss)
        if not self._looked and loss.requires_grad:
            check_loss(loss, atom.count)
            self._looked = atom.count > 1
        return loss
