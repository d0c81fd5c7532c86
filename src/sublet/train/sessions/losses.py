"""With `loss=` the session calls the model itself: what it is called with, and the loss that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["Loss", "found_in", "loss_of", "model_input"]

# Of the last output and the batch; with reduction="counted" the sum, and over how much
Loss = Callable[[Any, Any], Any]


def model_input(batch: Any) -> Any:
    """The first of a tuple or list; else the batch itself, such as a mapping or a tensor."""
    return batch[0] if isinstance(batch, tuple | list) else batch


def loss_of(model: Callable[[Any], Any], loss: Loss, batch: Any, *, counts: bool) -> tuple[torch.Tensor, Any]:
    """The loss over a micro-batch, and what it is a sum over (None unless it `counts`)."""
    found = loss(model(model_input(batch)), batch)
    if not counts:
        return found, None
    if not isinstance(found, tuple) or len(found) != 2:  # noqa: PLR2004 - a pair
        allowed = "a pair with reduction='counted': the sum, and how much it is a sum over"
        raise InvalidValue("loss=", type(found).__name__, allowed)
    return found


def found_in(given: Any, model: torch.nn.Module, loss: Loss | None, counted: Any, *, counts: bool) -> tuple[Any, Any]:
    """What `s.step` was given, as a loss and its count: the batch if there is a `loss=`, a function or a tensor."""
    if loss is None:
        return given() if callable(given) else given, counted
    if counted is not None:
        raise InvalidValue("counted", counted, "left out with loss=, which returns a pair: the sum, and its count")
    return loss_of(model, loss, given, counts=counts)
