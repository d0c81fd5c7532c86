"""A model in its eval mode for a while; a script may have some of it in that mode anyway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["in_eval_mode"]


@contextmanager
def in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Each module is in the mode that it was in afterwards."""
    was = [(each, each.training) for each in model.modules()]
    model.train(False)  # noqa: FBT003 - as torch has it
    try:
        yield
    finally:
        for each, training in was:
            each.training = training
