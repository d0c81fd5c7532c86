"""A state taken over by an optimizer whose parameter groups a script may have in its hands.

Torch gives an optimizer new groups with each state that it loads. A script that holds one of the old ones
(`group = optimizer.param_groups[0]`) would change the learning rate of nothing from then on, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["load_optimizer"]


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """What its `state_dict` gave, in the groups that it has."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(dict(state))
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        group.clear()
        group.update(loaded)
    optimizer.param_groups = groups
