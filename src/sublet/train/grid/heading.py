"""What is said of a tensor before it is sent from one part to the next: its type, its shape, and whether it learns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sublet.errors import InvalidValue

__all__ = ["HEADING", "Heading"]

MOST_DIMS = 8
HEADING = 3 + MOST_DIMS  # numbers, the same count for all: who receives has room of just that size
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Heading:
    """`learns`: something before the border is trained by it, so that its gradient is waited for."""

    shape: torch.Size
    dtype: torch.dtype
    learns: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Heading:
        """InvalidValue for what does not cross a border."""
        if tensor.dtype not in DTYPES or tensor.dim() > MOST_DIMS or tensor.layout != torch.strided:
            found = f"a block that gives {tensor.dtype} of {tensor.dim()} dimensions, {tensor.layout}"
            allowed = f"of blocks that give floating point numbers of at most {MOST_DIMS} dimensions, not sparse"
            raise InvalidValue("parts", found, allowed)
        return cls(tensor.shape, tensor.dtype, tensor.requires_grad)

    def said(self) -> torch.Tensor:
        """As it is sent."""
        facts = [DTYPES.index(self.dtype), int(self.learns), len(self.shape), *self.shape]
        return torch.tensor(facts + [0] * (HEADING - len(facts)), dtype=torch.int64)

    @classmethod
    def heard(cls, said: torch.Tensor) -> Heading:
        """As it has come."""
        code, learns, dims, *shape = said.tolist()
        return cls(torch.Size(shape[:dims]), DTYPES[code], bool(learns))
