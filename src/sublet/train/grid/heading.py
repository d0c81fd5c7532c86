"""What is said of a tensor before it is sent from one part to the next: its type, its shape, and how it lies in memory.

Kernels add in the order in which numbers lie: of what was transposed, or is in `channels_last`, one process rounds in
another way than who has the same numbers row by row. So they are sent as they lie, and lie so where they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from sublet.errors import InvalidValue

__all__ = ["HEADING", "Heading"]

MOST_DIMS = 8
HEADING = 3 + 2 * MOST_DIMS  # numbers, the same count for all: who receives has room of just that size
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Heading:
    """`learns`: something before the border is trained by it, so that its gradient is waited for; of one: it is there.

    `strides`: as they are where the numbers fill their memory, though one may be there for many (`expand`); else those
    of rows.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    learns: bool

    @classmethod
    def of(cls, tensor: torch.Tensor, *, learns: bool) -> Heading:
        """InvalidValue for what does not cross a border."""
        if tensor.dtype not in DTYPES or tensor.dim() > MOST_DIMS or tensor.layout != torch.strided:
            found = f"a block that gives {tensor.dtype} of {tensor.dim()} dimensions, {tensor.layout}"
            allowed = f"of blocks that give floating point numbers of at most {MOST_DIMS} dimensions, not sparse"
            raise InvalidValue("parts", found, allowed)
        strides = tensor.stride() if _fills_memory(tensor) else _of_rows(tensor.shape)
        return cls(tensor.shape, strides, tensor.dtype, learns)

    def said(self) -> torch.Tensor:
        """As it is sent."""
        rest = [0] * (MOST_DIMS - len(self.shape))
        facts = [DTYPES.index(self.dtype), int(self.learns), len(self.shape), *self.shape, *rest, *self.strides, *rest]
        return torch.tensor(facts, dtype=torch.int64)

    @classmethod
    def heard(cls, said: torch.Tensor) -> Heading:
        """As it has come."""
        code, learns, dims, *sizes = said.tolist()
        strides = tuple(sizes[MOST_DIMS : MOST_DIMS + dims])
        return cls(torch.Size(sizes[:dims]), strides, DTYPES[code], bool(learns))

    def room(self, device: torch.device) -> torch.Tensor:
        """For what is to come."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=device)

    def memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Of what this is said of, or of its room: its numbers as they lie, each once."""
        if tensor.stride() != self.strides:
            tensor = tensor.contiguous()
        count = prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride)
        return tensor.as_strided((count,), (1,))


def _fills_memory(tensor: torch.Tensor) -> bool:
    """Without gaps, and no two rows share a part."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride:
            if stride != reach:
                return False
            reach *= size
    return tensor.numel() > 0


def _of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))
