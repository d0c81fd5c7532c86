"""From one part to the next: what a stage gives goes there, and its gradients come back.

    part 0   Border.give(value)  ->  heading, tensors  ->   Border.take() -> Came     part 1
             Border.learned()    <-  which, gradients  <-   Border.give_back(came)

What came is as if it had been computed here: whoever takes it may write into it, as after any other operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from sublet.machine.wall import WALL
from sublet.train.grid.heading import HEADING, Heading
from sublet.train.grid.mesh import Mesh

__all__ = ["Borders", "Came"]

HEADED = 1 << 24  # beside the tag of what comes: its heading
NEXT = 1 << 25  # from the tag of one tensor to that of the one behind it


@dataclass(slots=True)
class Came:
    """What came, and once backward is over the gradients of those that learn: None where none came to it."""

    value: Any
    gradients: list[torch.Tensor | None] = field(default_factory=list)


class Borders:
    """Of one worker."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.idle_s = 0.0  # waiting for neighbours

    def give(self, mesh: Mesh, value: Any, to: int, tag: int, after: str) -> None:
        """Forward."""
        heading = Heading.of(value, after)
        mesh.send(heading.said(), to, HEADED + tag)
        for number, each in enumerate(value if heading.is_tuple else (value,)):
            self._send(mesh, each, to, tag + number * NEXT)

    def take(self, mesh: Mesh, giver: int, tag: int) -> Came:
        """What was given."""
        said = torch.zeros(HEADING, dtype=torch.int64)
        self._take(mesh, said, giver, HEADED + tag)
        heading = Heading.heard(said)
        tensors = [torch.empty(each.shape, dtype=each.dtype, device=self._device) for each in heading.tensors]
        for number, each in enumerate(tensors):
            self._receive(mesh, each, giver, tag + number * NEXT)
        learns = [number for number, each in enumerate(heading.tensors) if each.learns]
        came = Came(None, [None] * len(learns))
        if learns and torch.is_grad_enabled():
            root = torch.empty(0, requires_grad=True)
            found = _Arrived.apply(came.gradients, root, *(tensors[number] for number in learns))  # type: ignore[no-untyped-call]  # torch does not say
            for number, each in zip(learns, found, strict=True):
                tensors[number] = each
        came.value = tuple(tensors) if heading.is_tuple else tensors[0]
        return came

    def give_back(self, mesh: Mesh, came: Came, to: int, tag: int) -> None:
        """Backward."""
        if not came.gradients:
            return
        there = [each is not None for each in came.gradients]
        mesh.send(torch.tensor(there, dtype=torch.int64), to, HEADED + tag)
        for number, each in enumerate(came.gradients):
            if each is not None:
                self._send(mesh, each, to, tag + number * NEXT)

    def learned(self, mesh: Mesh, value: Any, giver: int, tag: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Those of what we gave that have a gradient, each with it."""
        learns = [each for each in (value if isinstance(value, tuple) else (value,)) if each.requires_grad]
        if not learns:
            return []
        there = torch.zeros(len(learns), dtype=torch.int64)
        self._take(mesh, there, giver, HEADED + tag)
        found = []
        for number, (each, has) in enumerate(zip(learns, there.tolist(), strict=True)):
            if has:
                gradient = torch.empty(each.shape, dtype=each.dtype, device=self._device)
                self._receive(mesh, gradient, giver, tag + number * NEXT)
                found.append((each, gradient))
        return found

    def _send(self, mesh: Mesh, tensor: torch.Tensor, to: int, tag: int) -> None:
        if tensor.numel():
            mesh.send(_flat(tensor.detach().contiguous()), to, tag)

    def _receive(self, mesh: Mesh, tensor: torch.Tensor, giver: int, tag: int) -> None:
        if tensor.numel():
            self._take(mesh, _flat(tensor), giver, tag)

    def _take(self, mesh: Mesh, tensor: torch.Tensor, giver: int, tag: int) -> None:
        began_s = WALL.monotonic()
        mesh.receive(tensor, giver, tag)
        self.idle_s += WALL.monotonic() - began_s


class _Arrived(torch.autograd.Function):
    """What came over a border, as the root of a graph: the gradients that come to it are laid into the list."""

    @staticmethod
    def forward(
        ctx: Any, gradients: list[torch.Tensor | None], _root: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # no gradient is not one of zero
        ctx.gradients = gradients
        return tuple(each.detach() for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        ctx.gradients[:] = gradients
        return (None, None, *(None for _ in gradients))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: gloo does not know of all types."""
    return tensor.view(-1).view(torch.uint8)
