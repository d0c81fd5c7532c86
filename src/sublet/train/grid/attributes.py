"""What modules of others would have left in their attributes: known as theirs, for whoever reads it (`block.aux_loss`).

A module that is also ours, as one table that all blocks share may be, is spared. All is as it was when the model is
whole again.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import nn

__all__ = ["Attributes"]

MISSING: Any = object()


class Attributes:
    """Of the ghosts of one model. `spare` are modules that compute here, by their id."""

    def __init__(self) -> None:
        self.spare: AbstractSet[int] = frozenset()
        self._were: dict[tuple[int, str], tuple[nn.Module, Any]] = {}

    def put(self, module: nn.Module, name: str, value: torch.Tensor) -> None:
        """As its forward would have."""
        if id(module) not in self.spare:
            facts = vars(module)
            self._were.setdefault((id(module), name), (module, facts.get(name, MISSING)))
            facts[name] = value

    def put_back(self) -> None:
        """As they were."""
        for (_, name), (module, was) in self._were.items():
            if was is MISSING:
                vars(module).pop(name, None)
            else:
                vars(module)[name] = was
        self._were = {}
