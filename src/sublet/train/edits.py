"""Edits of gradients by the script itself, which would be lost without a word.

Gradients are there between the backward of a step and its update, and both are in `Session.step`. A `clip_grad_norm_`
that was left in the loop finds none, does nothing, and says nothing. So a few parameters have decoys in between: zeros
that nobody reads. Whoever clips multiplies all gradients in place, and torch counts what is done to a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from sublet.errors import InvalidValue

__all__ = ["Edits"]

MOST = 16  # parameters that are looked at, from all over the model
SMALL = 1 << 16  # numbers in a decoy: they take memory
ALWAYS, EVERY = 32, 16  # steps: a loop does the same each time, so each of the first is looked at, and then some


class Edits:
    """Looks for them among the gradients of these parameters; all calls between the steps are cheap."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._watched = _spread([each for each in parameters if each.is_floating_point()])
        self._decoys: list[torch.Tensor] = []
        self._hidden: list[torch.Tensor | None] = []  # gradients in whose place decoys are; empty = none are laid
        self._versions: list[int] = []
        self._steps = 0

    def lay(self) -> None:
        """Until the next backward nobody needs a gradient: before the first step, and after each."""
        self._steps += 1
        self._versions = []
        if self._hidden or not (self._steps <= ALWAYS or self._steps % EVERY == 0):
            return
        if not self._decoys:
            # Negative zeros: those of zero_grad(set_to_none=False), which does no harm, are positive.
            self._decoys = [torch.full_like(parameter, -0.0, requires_grad=False) for parameter in self._watched]
        for parameter, decoy in zip(self._watched, self._decoys, strict=True):
            self._hidden.append(parameter.grad)
            parameter.grad = decoy
        self._versions = [_version(decoy) for decoy in self._decoys]

    def lift(self) -> None:
        """Gradients as they were, without a question."""
        for parameter, gradient in zip(self._watched, self._hidden, strict=False):
            parameter.grad = gradient
        self._hidden, self._versions = [], []

    def note(self) -> None:
        """Between two micro-batches of a step: these gradients are half a sum."""
        self._versions = [_version(parameter.grad) for parameter in self._watched]

    def check(self) -> None:
        """Before a backward: InvalidValue if somebody was there."""
        if not self._versions:
            return
        if not self._hidden:
            if any(_version(each.grad) != was for each, was in zip(self._watched, self._versions, strict=True)):
                raise edited("between the micro-batches of a step")
            return
        found = [parameter.grad for parameter in self._watched]
        versions = self._versions
        self.lift()
        for gradient, decoy, version in zip(found, self._decoys, versions, strict=True):
            if gradient is None or (gradient is decoy and _version(decoy) == version):
                continue
            if gradient is not decoy or bool(torch.signbit(decoy).any()) or bool(decoy.any()):
                raise edited("between two steps")
            decoy.fill_(-0.0)


def edited(when: str) -> InvalidValue:
    """In words."""
    return InvalidValue(
        "gradients",
        f"edited {when}",
        "left to the session, which sums them over all workers before they count: in place of clip_grad_norm_ and "
        "clip_grad_value_ say train.session(..., clip_norm=1.0) or clip_value=0.5; for an edit of your own use "
        "parameter.register_hook(), which sees the part of one worker",
    )


def _spread(parameters: list[torch.nn.Parameter]) -> Sequence[torch.nn.Parameter]:
    """The smallest of each of a few stretches of the model; large ones only if all are."""
    if not parameters:
        return []
    stretch = -(-len(parameters) // MOST)
    chosen = [
        min(parameters[start : start + stretch], key=torch.Tensor.numel) for start in range(0, len(parameters), stretch)
    ]
    small = [parameter for parameter in chosen if parameter.numel() <= SMALL]
    return small or [min(parameters, key=torch.Tensor.numel)]


def _version(gradient: torch.Tensor | None) -> int:
    """How often it was written to; -1 if there is none."""
    return -1 if gradient is None else gradient._version  # noqa: SLF001 - torch's way of telling
