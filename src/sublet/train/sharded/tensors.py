"""Which tensors are in shards; apart from the rest, whose imports take a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor, of which this rank has a part."""
    return hasattr(tensor, "full_tensor")


def has_shards(part: Any) -> bool:
    """Whether a model or an optimizer has such."""
    if isinstance(part, torch.optim.Optimizer):
        return any(is_sharded(each) for each in trained_by(part))
    return isinstance(part, nn.Module) and any(is_sharded(each) for each in part.parameters())


def trained_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Its parameters, in the order of its state."""
    for group in optimizer.param_groups:
        yield from group["params"]
