"""Whether a loss is a mean over samples, as far as the graph says that torch has made of it.

A worker has a part of the batch. The mean over the batch is the mean of what workers have, weighted by their samples,
only where a loss is a mean over samples. A mean over unmasked pixels, over tokens with labels, one by weights, the root
of a mean, and a loss in which each sample is held against all others of the batch are not: what comes of them depends
on the number of workers, and with micro-batches on their size. That may be meant, so it is said, and not refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from sublet.train.fitness import check_loss

__all__ = ["Means", "no_mean"]

LOOKS = 16  # micro-batches: labels that are left out may be in any of them, and most are in the first
MEAN = 1  # what a loss of torch remembers of reduction="mean"
LABELS = ("NllLossBackward0", "NllLoss2DBackward0")
MEANS = ("MeanBackward0", "MeanBackward1")
SUMS = ("SumBackward0", "SumBackward1")
ARITHMETIC = frozenset(  # of numbers that are finished
    f"{name}Backward{number}"
    for name in ("Add", "Sub", "Neg", "ToCopy", "Squeeze", "View", "Clone", "Stack", "Select", "Mul", "Div")
    for number in (0, 1)
)
BENDS = frozenset(f"{name}Backward0" for name in ("Sqrt", "Pow", "Log", "Exp", "Rsqrt", "Reciprocal", "Tanh"))
FURTHEST = 400  # nodes looked at

ADVICE = (
    "what comes of it depends on the number of workers, and on micro_batch. For a mean over other things than samples "
    'say reduction="counted" to the session, and s.step(sum_of_losses, counted=how_many); if it is meant as it is, say '
    'reduction="mean"'
)


class Means:
    """Looks at the first losses of a training, and says once what it sees; None: nobody has said what they are."""

    def __init__(self, reduction: str | None) -> None:
        self._sums, self._judged = reduction in ("sum", "counted"), False
        self._left = LOOKS if reduction is None else 0

    def look(self, loss: torch.Tensor, count: int) -> None:
        """Of so many samples."""
        if not self._judged:
            check_loss(loss, count, summed=self._sums)
            self._judged = count > 1
        if not self._left or count < 2:  # noqa: PLR2004 - of one sample all is a mean
            return
        self._left -= 1
        why = no_mean(loss, count)
        if why is not None:
            self._left = 0
            print(f"sublet: the loss is no mean over samples: {why}; {ADVICE}", file=sys.stderr)  # noqa: T201 - to the user, in the user's process


def no_mean(loss: torch.Tensor, count: int) -> str | None:
    """Why it is none; None if nothing says so."""
    for node in _numbers(loss.grad_fn):
        name = node.name()
        if name in LABELS and node._saved_reduction == MEAN:  # noqa: SLF001 - how autograd names what it saved
            if (why := _of_labels(node, count)) is not None:
                return why
        elif name in BENDS and _is_number(node) and any(_averages(each, count) for each in _below(node)):
            return f"it is a function ({name.removesuffix('Backward0').lower()}) of a mean"
        elif (size := _averaged(node)) is not None and size % count and not _is_of_weights(node, count):
            return f"it is a mean over {size} things, of {count} samples"
        elif (quotient := _quotient(node, count)) is not None and quotient % count:
            return f"it is a sum, divided by {quotient:g}, of {count} samples"
        if _is_reduction(node) and any(_holds_against(each, count) for each in _beneath(node)):
            return "each sample is held against the others of its batch"
    return None


def _of_labels(node: Any, count: int) -> str | None:
    labels, scores = node._saved_target, node._saved_self  # noqa: SLF001 - as above
    weighed = float(node._saved_total_weight)  # noqa: SLF001 - as above
    if weighed != labels.numel():
        if node._saved_weight is not None:  # noqa: SLF001 - as above
            return "classes have weights, and the mean is by them"
        counts = labels != node._saved_ignore_index  # noqa: SLF001 - as above
        if _as_many_each(counts, count):
            return None
        return f"{int((~counts).sum())} of {labels.numel()} labels are left out of it (ignore_index)"
    if scores.shape == (count, count) and torch.equal(labels, torch.arange(count, device=labels.device)):
        return "each sample is held against the others of its batch"
    return None


def _as_many_each(counts: torch.Tensor, samples: int) -> bool:
    """Whether as many labels of each sample count: samples come first, or last."""
    if counts.numel() % samples:
        return False
    first, last = counts.reshape(samples, -1).sum(1), counts.reshape(-1, samples).sum(0)
    return any(bool((each == each[0]).all()) for each in (first, last))


def _numbers(node: Any) -> Iterator[Any]:
    """Nodes from the loss back to where its parts became numbers, those included."""
    todo = [node]
    for _ in range(FURTHEST):
        if not todo:
            return
        node = todo.pop()
        if node is not None:
            yield node
            if node.name() in ARITHMETIC or _adds_numbers(node):
                todo += _below(node)


def _adds_numbers(node: Any) -> bool:
    """Whether it adds up, or averages, a list of losses."""
    if node.name() not in (*SUMS, *MEANS) or not any(each.name() == "StackBackward0" for each in _below(node)):
        return False
    return len(node._saved_self_sym_sizes) == 1  # noqa: SLF001 - as above


def _below(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def _averaged(node: Any) -> int | None:
    """Over how many numbers it is a mean; None if it is none."""
    if node.name() in MEANS and not _adds_numbers(node):
        sizes = node._saved_self_sym_sizes  # noqa: SLF001 - as above
        return int(torch.Size(sizes).numel()) if node.name() == MEANS[0] else None
    if getattr(node, "_saved_reduction", None) != MEAN or node.name() in LABELS:
        return None
    given = getattr(node, "_saved_self", None)
    return given.numel() if isinstance(given, torch.Tensor) else None


def _quotient(node: Any, count: int) -> float | None:
    """By what a sum over samples is divided; None if it is no such thing."""
    above = _below(node)[:1] if node.name() == "DivBackward0" else []
    by = getattr(node, "_saved_other", None)
    if not above or above[0].name() not in SUMS or not isinstance(by, torch.Tensor) or by.numel() != 1:
        return None
    size = torch.Size(above[0]._saved_self_sym_sizes).numel()  # noqa: SLF001 - as above
    return float(by) if size % count == 0 and not _is_of_weights(above[0], count) else None


def _averages(node: Any, count: int) -> bool:
    """Whether a number is made from a mean that samples are in."""
    return any(
        (_averaged(each) or 0) % count == 0 and not _is_of_weights(each, count)
        for each in _numbers(node)
        if _averaged(each) is not None or each.name() in LABELS
    )


def _is_reduction(node: Any) -> bool:
    return _averaged(node) is not None or node.name() in LABELS


def _is_number(node: Any) -> bool:
    """Whether what it bends is one number."""
    kept = getattr(node, "_saved_self", None)
    kept = getattr(node, "_saved_result", None) if kept is None else kept
    return isinstance(kept, torch.Tensor) and kept.dim() == 0


def _is_of_weights(node: Any, count: int) -> bool:
    """Whether all that is beneath it is parameters and constants: a penalty, or a head that is made from weights."""
    todo, seen = [node], set[Any]()
    while todo:
        node = todo.pop()
        if node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        if len(seen) > FURTHEST or (_takes_something(node) and not _takes_a_constant(node, count)):
            return False
        todo += _below(node)
    return True


def _takes_something(node: Any) -> bool:
    """Whether one of what it is made from asks for no gradient: data, or a constant."""
    return any(each is None for each, _ in node.next_functions)


def _takes_a_constant(node: Any, count: int) -> bool:
    """Of data there is one row for each sample; layers take nothing but data."""
    if node.name() not in ARITHMETIC:
        return False
    kept = (getattr(node, f"_saved_{name}", None) for name in ("self", "other"))
    return not any(isinstance(each, torch.Tensor) and each.dim() and len(each) == count for each in kept)


def _beneath(node: Any) -> Iterator[Any]:
    """What a reduction is made from, not far."""
    todo, seen = _below(node), set[Any]()
    while todo and len(seen) < FURTHEST // 8:
        node = todo.pop(0)
        if node not in seen:
            seen.add(node)
            yield node
            todo += _below(node)


def _holds_against(node: Any, count: int) -> bool:
    """A product of all samples of a batch with all samples of a batch."""
    if node.name() != "MmBackward0":
        return False
    one, other = (getattr(node, f"_saved_{name}", None) for name in ("self", "mat2"))
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    second = node.next_functions[1][0]
    made = second is not None and not _is_of_weights(second, count)
    return made and one.shape[0] == count == other.shape[1]
