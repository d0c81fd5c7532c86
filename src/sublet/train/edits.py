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
        self._decoys: list[tuple[torch.Tensor | None, torch.Tensor]] = []  # the gradient, and what is in its place
        self._versions: list[int] = []  # of gradients that are half a sum
        self._steps = 0

    def lay(self) -> None:
        """Until the next backward nobody needs a gradient: before the first step, and after each."""
        self._steps += 1
        self._versions = []
        if self._decoys or not (self._steps <= ALWAYS or self._steps % EVERY == 0):
            return
        for parameter in self._watched:
            # Negative zeros: those of zero_grad(set_to_none=False), which does no harm, are positive.
            decoy = torch.full_like(parameter, -0.0, requires_grad=False)
            self._decoys.append((parameter.grad, decoy))
            parameter.grad = decoy

    def lift(self) -> None:
        """Gradients as they were, without a question."""
        for parameter, (gradient, _) in zip(self._watched, self._decoys, strict=False):
            parameter.grad = gradient
        self._decoys, self._versions = [], []

    def note(self) -> None:
        """Between two micro-batches of a step: these gradients are half a sum."""
        self._versions = [_version(parameter) for parameter in self._watched]

    def check(self) -> None:
        """Before a backward: InvalidValue if somebody was there."""
        if self._decoys:
            untouched = all(
                _is_untouched(parameter.grad, decoy)
                for parameter, (_, decoy) in zip(self._watched, self._decoys, strict=True)
            )
            self.lift()
            if not untouched:
                raise edited("between two steps")
        elif self._versions and self._versions != [_version(parameter) for parameter in self._watched]:
            raise edited("between the micro-batches of a step")


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


def _is_untouched(found: torch.Tensor | None, decoy: torch.Tensor) -> bool:
    """It is there as it was laid, or is not there any more, or was set to zero."""
    if found is None or (found is decoy and not decoy._version):  # noqa: SLF001 - torch counts what is done to it
        return True
    return found is decoy and not bool(torch.signbit(decoy).any()) and not bool(decoy.any())


def _version(parameter: torch.nn.Parameter) -> int:
    """How often its gradient was written to; -1 if it has none."""
    gradient = parameter.grad
    return -1 if gradient is None else gradient._version  # noqa: SLF001 - as above
