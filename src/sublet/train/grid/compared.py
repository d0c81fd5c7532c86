"""Loss and gradients of a model in parts beside those in one piece: equal to the bit, within rounding, or others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from sublet.errors import InvalidValue

__all__ = ["Comparison", "Whole", "check_alike", "dense", "differs", "eps_of", "fingerprint"]

ROUNDING = 64  # epsilons, of what was added up
PRIME = 8191.0  # weights of a sum that tells numbers in one order from those in another
CAUSES = (
    "trained in parts as it is in one piece. What differs is mostly a term over parameters (a penalty on weights: use "
    "weight_decay of the optimizer); what is made before a block, or by another one, and used behind it beside the one "
    "tensor that goes from block to block (put it into the blocks); what a block writes into the tensor that it gets "
    "(x = x + y in place of x += y); or chance that a block does not take from torch's own dice"
)

Print = tuple[float, float]


def differs(what: str) -> InvalidValue:
    """As all of this is refused."""
    return InvalidValue("parts", what, f"of a model that is {CAUSES}")


@dataclass(frozen=True, slots=True)
class Whole:
    """What the model came to in one piece."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]  # by the parameter's name; that of one without is zero
    came: dict[int, Print]  # what each block got
    eps: float  # of the coarsest numbers that its blocks compute with


class Comparison:
    """InvalidValue from whatever is asked about what differs."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._sums: dict[str, list[torch.Tensor]] = {}
        self._first: int | None = None  # the first block that got something else
        self.told = False  # a part's forward has said by itself what is wrong with it
        self.grey: list[str] = []  # differs no more than rounding does; "" is the loss

    @property
    def between(self) -> bool:
        """Some block got something else."""
        return self._first is not None

    def sent(self, block: int, x: torch.Tensor) -> None:
        """What a block gets from the part before it."""
        if self._first is None and fingerprint(x) != self._whole.came.get(block):
            self._first = block

    def judge_loss(self, loss: torch.Tensor) -> None:
        """What the last part came to."""
        whole = self._whole.loss
        if _is_equal(whole, loss):
            return
        if not _is_close(whole, loss, abs(float(whole)), self._whole.eps):
            why = f"block {self._first} gets another tensor" if self.between else "though all blocks get the same"
            raise differs(f"a loss of {float(loss):.6g} in parts, {float(whole):.6g} in one piece: {why}")
        self.grey.append("")

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """What one part has of it."""
        self._sums.setdefault(name, []).append(gradient)

    def judge(self, name: str, parameter: torch.Tensor) -> None:
        """All parts have added theirs."""
        terms, whole = self._sums.pop(name, []), self._whole.gradients.get(name)
        one = torch.zeros_like(parameter) if whole is None else whole
        other = torch.zeros_like(parameter) if not terms else terms[0]
        for term in terms[1:]:
            other = other + term
        if _is_equal(one, other):
            self._whole.gradients.pop(name, None)
            return
        length = max(sum(map(_length, terms)), _length(one))
        if not _is_close(one, other, length, max(self._whole.eps, torch.finfo(one.dtype).eps)):
            lengths = f"of length {_length(other):.6g} in parts, {_length(one):.6g} in one piece"
            raise differs(f"a gradient of {name} {lengths}")
        if len(terms) < 2 and one.device.type == "cpu":  # noqa: PLR2004 - shared by none; GPUs add in any order
            self.grey.append(name)

    def check_repeats(self, again: Whole) -> None:
        """A whole model that comes to the same twice has no rounding to excuse that its parts do not."""
        for name in self.grey:
            if not name and _is_equal(self._whole.loss, again.loss):
                raise differs("a loss that is another in its last digits")
            if name and _is_equal(self._whole.gradients[name], again.gradients[name]):
                raise differs(f"a gradient of {name} that is another in its last digits")

    def check_whole(self, again: Whole) -> None:
        """Where parts differ: whether the whole model comes to the same twice, within rounding."""
        one, other = self._whole.loss, again.loss
        if not _is_close(one, other, abs(float(one)), self._whole.eps):
            raise InvalidValue(
                "loss",
                f"{float(one):.6g}, and {float(other):.6g} when it is computed again",
                "one that follows from the micro-batch, s.steps and torch's own dice, where the model is cut: each "
                "part computes it by itself",
            )


def check_alike(one: Any, other: Any) -> None:
    """Two batches of the same samples, as far as one can look into them; InvalidValue."""
    (ours, form), (theirs, of_theirs) = tree_flatten(one), tree_flatten(other)
    if form != of_theirs or not all(map(_is_alike, ours, theirs)):
        raise InvalidValue(
            "dataset",
            "samples that are others when they are loaded again",
            "one whose samples follow from their number, and from what torch, numpy and random draw by themselves: "
            "each part of the model loads its own",
        )


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Of an embedding it may name its rows."""
    return gradient.to_dense() if gradient.layout != torch.strided else gradient


def fingerprint(x: torch.Tensor) -> Print:
    """Two numbers that tell it from another."""
    with torch.no_grad():
        numbers = x.detach().double().flatten()
        places = torch.arange(1, len(numbers) + 1, dtype=numbers.dtype, device=numbers.device)
        return float(numbers.sum()), float(torch.dot(numbers, places.remainder(PRIME)))


def eps_of(x: torch.Tensor) -> float:
    """Of numbers as they are computed with here."""
    kinds = [x.dtype] if x.is_floating_point() else []
    if torch.is_autocast_enabled(x.device.type):
        kinds.append(torch.get_autocast_dtype(x.device.type))
    return max((torch.finfo(each).eps for each in kinds), default=0.0)


def _length(x: torch.Tensor) -> float:
    return float(x.double().norm())


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _is_close(one: torch.Tensor, other: torch.Tensor, length: float, eps: float) -> bool:
    """Or neither is a number: then nothing can be told."""
    if one.shape != other.shape:
        return False
    if not (one.isfinite().all() or other.isfinite().all()):
        return True
    return _length(one.double() - other.double()) <= ROUNDING * eps * length


def _is_alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and _is_equal(one, other)
    return not isinstance(one, int | float | str | bytes) or one == other or one != one  # noqa: PLR0124 - not a number
