"""What goes past the blocks of a forward: nothing but one tensor may go from each block to the next.

    check_flow(cut, lambda: loss_of(model, batch))    # after `cut.learn`; InvalidValue, before anything is trained

A part skips the blocks of others, and whatever is around them answers with zeros. A forward that hands on something
beside the one tensor (`x = x + block(x)` outside of the block, a block that also takes the embedding, a loss with a
term of each block) would be trained on those zeros without a word. So one run, in which nothing is computed, has
numbers in place of them that are none (NaN): where these arrive, something goes past the blocks.

Whether a cut model is trained as a whole one is told by numbers (`proof`). This says why it is not; and where there is
no room for numbers it is all that is looked at, and stricter than it need be: what is computed between two blocks is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from sublet.errors import InvalidValue
from sublet.train.grid.borders import carried
from sublet.train.grid.cutting import Cut
from sublet.train.grid.ghosts import Ghost

__all__ = ["check_flow"]


def check_flow(cut: Cut, call: Callable[[], Any], *, between: bool = True) -> None:
    """`call` runs the model, as a step does with one micro-batch; it is run twice here, and nothing is computed.

    `between`: what is computed between two blocks counts.
    """
    flow = _Flow(len(cut.blocks), between=between)
    try:
        clean = flow.run(cut, call, taint=False)
        flow.check_all_called()
        found = flow.run(cut, call, taint=True)
    except InvalidValue:
        raise
    except Exception:  # noqa: BLE001 - code of the script that does not take such numbers: then nobody can tell
        return
    if _is_tainted(found) and not _is_tainted(clean):
        raise InvalidValue(
            "parts",
            "a loss that takes more than the last block gives",
            "of a model where all that comes after the blocks is made of the last one's output and of the batch: what "
            "is made before them, or by another block, is on another worker",
        )


class _Flow:
    """Of one forward: blocks one after the other, and what each got and gave."""

    def __init__(self, blocks: int, *, between: bool) -> None:
        self.blocks, self.called, self.taint, self._between = blocks, 0, False, between
        self._given: torch.Tensor | None = None
        self._version = 0  # of what was given: who writes into it makes another

    def run(self, cut: Cut, call: Callable[[], Any], *, taint: bool) -> Any:
        """What it comes to."""
        self.called, self._given, self.taint = 0, None, taint
        with cut.replaced(lambda _, each: _Around(each, self), lambda at, each: _Block(each, self, at)):
            return call()

    def check_all_called(self) -> None:
        """After a run."""
        if self.called != self.blocks:
            raise InvalidValue("parts", f"{self.called} of {self.blocks} blocks run", "a list of blocks that all run")

    def enter(self, number: int, values: Sequence[Any]) -> None:
        """A block is called; what goes from block to block is the first of what it gets."""
        if number != self.called:
            what = (
                f"block {number} {'after' if self.called else 'before'} block {self.called - 1 if self.called else 0}"
            )
            raise InvalidValue("parts", what, "of blocks that run once each, in the order of their list")
        first = values[0] if values else None
        if not isinstance(first, torch.Tensor) or not (self._given is None or self._is_given(first)):
            what = f"block {number} that gets something else than block {number - 1} gives"
            raise InvalidValue(
                "parts",
                what if number else "block 0 that gets no tensor first",
                "of blocks of which each takes what the one before has given, one tensor, as it is: put what is "
                "computed between them into the blocks",
            )
        if any(map(_is_tainted, values[1:])):
            raise InvalidValue(
                "parts",
                f"block {number} that also gets what another part of the model has computed",
                "of blocks that take one tensor of the model, and all else of the batch alone, as masks are",
            )

    def leave(self, number: int, made: Any) -> Any:
        """What it gives."""
        first = made[0] if isinstance(made, tuple) and made else made
        if not isinstance(first, torch.Tensor):
            allowed = "of blocks that return a tensor, or a tuple that begins with it"
            raise InvalidValue("parts", f"block {number} that returns a {type(made).__name__}", allowed)
        self.called = number + 1
        out = tree_map(_tainted, made) if self.taint and number < self.blocks - 1 else made
        out = tree_map(_with_gradient, out)
        self._given = given = out[0] if isinstance(out, tuple) else out
        self._version = given._version  # noqa: SLF001 - torch's own count
        return out

    def _is_given(self, got: torch.Tensor) -> bool:
        """The very numbers, in their order, with their gradient: what is computed from them lies elsewhere."""
        given = self._given
        assert given is not None  # noqa: S101 - asked after the first block
        if not self._between:
            return True
        written = got._version != self._version  # noqa: SLF001 - torch's own count
        return not written and _facts(got) == _facts(given)


class _Around(Ghost):
    """A module that is no block."""

    def __init__(self, inner: nn.Module, flow: _Flow) -> None:
        super().__init__(inner, own=True)
        self.__dict__["sublet.flow"] = flow

    def forward(self, *args: Any, **facts: Any) -> Any:
        made, flow = super().forward(*args, **facts), self.__dict__["sublet.flow"]
        taint = flow.taint and (not flow.called or _is_tainted((args, facts)))
        return tree_map(_tainted, made) if taint else made


class _Block(Ghost):
    """One of them."""

    def __init__(self, inner: nn.Module, flow: _Flow, number: int) -> None:
        super().__init__(inner, own=True)
        self.__dict__["sublet.flow"], self.__dict__["sublet.number"] = flow, number

    def forward(self, *args: Any, **facts: Any) -> Any:
        name = carried(self.__dict__["sublet.inner"], args, facts)
        firsts = () if name is None else (facts[name],)
        others = [value for each, value in facts.items() if each != name]
        self.__dict__["sublet.flow"].enter(self.__dict__["sublet.number"], [*firsts, *args, *others])
        return self.__dict__["sublet.flow"].leave(self.__dict__["sublet.number"], super().forward(*args, **facts))


def _facts(x: torch.Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.requires_grad


def _with_gradient(value: Any) -> Any:
    """As what a block makes has one, unless it is made without."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    return value.requires_grad_().clone()


def _tainted(value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    return torch.full(value.shape, math.nan, dtype=value.dtype, device=value.device)


def _is_tainted(value: Any) -> bool:
    leaves, _ = tree_flatten(value)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return any(bool(each.isnan().any()) for each in tensors)
