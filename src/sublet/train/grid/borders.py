"""From one part to the next: what a stage gives goes there, and its gradients come back.

    part 0   Border.give(value)  ->  heading, tensors  ->   Border.take() -> Came     part 1
             Border.learned()    <-  which, gradients  <-   Border.give_back(came)

What came is as if it had been computed here: whoever takes it may write into it, as after any other operation. Shapes
may be others with each micro-batch, and a message longer than its room would end a process: so the types and shapes are
said each time, in a heading whose size is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.machine.wall import WALL
from sublet.train.grid.mesh import Mesh
from sublet.train.grid.sharing import LETTER_BYTES, as_letter, facts_of

__all__ = ["Borders", "Came"]

HEADED = 1 << 24  # beside the tag of what comes: its heading
NEXT = 1 << 25  # from the tag of one tensor to that of the one behind it
MOST, MOST_DIMS = 8, 8  # of which a heading says all
ALLOWED = f"of which each gives one tensor, or a tuple of at most {MOST}, dense and of at most {MOST_DIMS} dimensions"


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
        """Forward; InvalidValue for what does not cross a border."""
        mesh.send(_heading(value, after), to, HEADED + tag)
        for number, each in enumerate(_all_of(value)):
            self._send(mesh, each, to, tag + number * NEXT)

    def take(self, mesh: Mesh, giver: int, tag: int) -> Came:
        """What was given."""
        said = torch.zeros(LETTER_BYTES, dtype=torch.uint8)
        self._take(mesh, said, giver, HEADED + tag)
        heading, tensors, learns = facts_of(said), list[torch.Tensor](), list[int]()
        for number, (kind, shape, trained) in enumerate(heading["tensors"]):
            tensors.append(torch.empty(shape, dtype=getattr(torch, kind), device=self._device))
            self._receive(mesh, tensors[-1], giver, tag + number * NEXT)
            learns += [number] * trained
        came = Came(None, [None] * len(learns))
        if learns and torch.is_grad_enabled():
            root = torch.empty(0, requires_grad=True)
            found = _Arrived.apply(came.gradients, root, *(tensors[number] for number in learns))  # type: ignore[no-untyped-call]  # torch does not say
            for number, each in zip(learns, found, strict=True):
                tensors[number] = each
        came.value = tuple(tensors) if heading["tuple"] else tensors[0]
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
        learns = [each for each in _all_of(value) if each.requires_grad]
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


def _heading(value: Any, after: str) -> torch.Tensor:
    """Of each tensor its type, its shape, and whether something before the border is trained by it."""
    found = _all_of(value)
    for each in found:
        if not isinstance(each, torch.Tensor) or each.layout != torch.strided or each.dim() > MOST_DIMS:
            raise InvalidValue("stages", f"{after} that gives a {type(value).__name__} with {_shown(each)}", ALLOWED)
    if not 1 <= len(found) <= MOST:
        raise InvalidValue("stages", f"{after} that gives {len(found)} tensors", ALLOWED)
    told = [(str(each.dtype).removeprefix("torch."), list(each.shape), each.requires_grad) for each in found]
    return as_letter({"tuple": isinstance(value, tuple), "tensors": told})


def _shown(thing: Any) -> str:
    return f"{thing.layout} {list(thing.shape)}" if isinstance(thing, torch.Tensor) else f"a {type(thing).__name__}"


def _all_of(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: gloo does not know of all types."""
    return tensor.view(-1).view(torch.uint8)
