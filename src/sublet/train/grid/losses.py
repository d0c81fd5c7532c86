"""The loss of a step, added up when somebody asks for it."""

from __future__ import annotations

import torch

__all__ = ["Losses"]


class Losses:
    """Of its atoms. On a GPU, to look at one waits for all work that is under way: so nobody looks before it must."""

    def __init__(self, known: float = 0.0) -> None:
        self._known = known
        self._found: list[tuple[torch.Tensor, float]] = []

    def add(self, loss: torch.Tensor, share: float) -> None:
        """That of an atom, which is so much of the step."""
        self._found.append((loss.detach(), share))

    def total(self) -> float:
        """In the order in which they came."""
        for loss, share in self._found:
            self._known += loss.item() * share
        self._found = []
        return self._known
