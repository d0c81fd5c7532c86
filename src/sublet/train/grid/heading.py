"""What is said of tensors before they are sent from one part to the next: how many, and of each its type and shape.

Shapes may be others with each micro-batch, and a message longer than its room would end a process: so it is said each
time, in one message of a fixed size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sublet.errors import InvalidValue

__all__ = ["HEADING", "Heading"]

MOST, MOST_DIMS = 8, 8
EACH = 3 + MOST_DIMS
HEADING = 2 + MOST * EACH  # numbers, the same count for all: who receives has room of just that size
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
ALLOWED = f"of which each gives at most {MOST} tensors, of numbers or truth values, of at most {MOST_DIMS} dimensions"


@dataclass(frozen=True, slots=True)
class Told:
    """Of one tensor; `learns`: something before the border is trained by it, so that its gradient is waited for."""

    dtype: torch.dtype
    shape: torch.Size
    learns: bool


@dataclass(frozen=True, slots=True)
class Heading:
    """Of what one stage gives to the next."""

    tensors: tuple[Told, ...]
    is_tuple: bool

    @classmethod
    def of(cls, value: Any, after: str) -> Heading:
        """InvalidValue for what does not cross a border; `after` which stage."""
        found = value if isinstance(value, tuple) else (value,)
        for each in found:
            if not isinstance(each, torch.Tensor):
                gives = f"{after} that gives a {type(value).__name__} with a {type(each).__name__}"
                allowed = "of which each gives one tensor, or a tuple of tensors, to the next"
                raise InvalidValue("stages", gives, allowed)
            if each.dtype not in DTYPES or each.dim() > MOST_DIMS or each.layout != torch.strided:
                gives = f"{after} that gives {each.dtype} of {each.dim()} dimensions, {each.layout}"
                raise InvalidValue("stages", gives, ALLOWED)
        if not 1 <= len(found) <= MOST:
            raise InvalidValue("stages", f"{after} that gives {len(found)} tensors", ALLOWED)
        told = tuple(Told(each.dtype, each.shape, each.requires_grad) for each in found)
        return cls(told, isinstance(value, tuple))

    def said(self) -> torch.Tensor:
        """As it is sent."""
        facts = [len(self.tensors), int(self.is_tuple)]
        for each in self.tensors:
            rest = [0] * (MOST_DIMS - len(each.shape))
            facts += [DTYPES.index(each.dtype), int(each.learns), len(each.shape), *each.shape, *rest]
        return torch.tensor(facts + [0] * (HEADING - len(facts)), dtype=torch.int64)

    @classmethod
    def heard(cls, said: torch.Tensor) -> Heading:
        """As it has come."""
        count, is_tuple, *facts = said.tolist()
        told = []
        for start in range(0, count * EACH, EACH):
            code, learns, dims, *sizes = facts[start : start + EACH]
            told.append(Told(DTYPES[code], torch.Size(sizes[:dims]), bool(learns)))
        return cls(tuple(told), bool(is_tuple))
