"""The gradient of what came over a border, as autograd has it.

A leaf's `grad` is laid in memory as the leaf is. In one process there is no leaf at a border, and what comes to it goes
on as it lies: so it is taken before it would be laid, after all hooks that the script has there.
"""

from __future__ import annotations

import torch

__all__ = ["Returning"]


class Returning:
    """Of one tensor that learns; where two passes come to it, as with reentrant checkpoints, their sum."""

    def __init__(self, came: torch.Tensor) -> None:
        made = came.view_as(came).grad_fn
        assert made is not None  # noqa: S101 - it learns
        self._node = made.next_functions[0][0]  # autograd forgets it, and its hook, where nobody holds it
        self._found = found = list[torch.Tensor]()

        def take(
            gradients: tuple[torch.Tensor | None, ...],
        ) -> tuple[None]:  # of the list alone: no cycle keeps a graph
            if (gradient := gradients[0]) is not None:
                found[:] = [found[0] + gradient if found else gradient]
            return (None,)

        assert self._node is not None  # noqa: S101 - that of a leaf
        self._node.register_prehook(take)

    @property
    def gradient(self) -> torch.Tensor | None:
        """None where nothing has learned of it."""
        return self._found[0] if self._found else None
