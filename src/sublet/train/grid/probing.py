"""Whether a forward can be cut between any two blocks: nothing but one tensor may go from each block to the next.

    check_flow(cut, lambda: loss_of(model, batch))    # after `cut.learn`; InvalidValue, before anything is trained

A part skips the blocks of others, and whatever is around them answers with zeros. A forward that hands on something
beside the one tensor (`x = x + block(x)` outside of the block, a block that also takes the embedding, a loss with a
term of each block) would be trained on those zeros without a word. So one run, in which nothing is computed, has
numbers in place of them that are none (NaN): where these arrive, something goes past the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from sublet.errors import InvalidValue
from sublet.train.grid.cutting import Cut, Ghost

__all__ = ["check_flow"]


def check_flow(cut: Cut, call: Callable[[], Any]) -> None:
    """`call` runs the model, as a step does with one micro-batch; it is run twice here, and nothing is computed."""
    flow = _Flow(len(cut.blocks))
    clean = flow.run(cut, call, taint=False)
    if flow.called != len(cut.blocks):
        raise InvalidValue("parts", f"{flow.called} of {len(cut.blocks)} blocks run", "a list of blocks that all run")
    try:
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

    def __init__(self, blocks: int) -> None:
        self.blocks, self.called, self.taint = blocks, 0, False
        self._given: torch.Tensor | None = None

    def run(self, cut: Cut, call: Callable[[], Any], *, taint: bool) -> Any:
        """What it comes to."""
        self.called, self._given, self.taint = 0, None, taint
        with (
            cut.replaced(lambda _, each: _Around(each, self), lambda at, each: _Block(each, self, at)),
            torch.no_grad(),
        ):
            return call()

    def enter(self, number: int, args: tuple[Any, ...], facts: dict[str, Any]) -> None:
        """A block is called."""
        if number != self.called:
            what = (
                f"block {number} {'after' if self.called else 'before'} block {self.called - 1 if self.called else 0}"
            )
            raise InvalidValue("parts", what, "of blocks that run once each, in the order of their list")
        values = [*args, *facts.values()]
        first = values[0] if values else None
        if not isinstance(first, torch.Tensor) or (self._given is not None and not _is_same(first, self._given)):
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
        self._given = out[0] if isinstance(out, tuple) else out
        return out


class _Around(Ghost):
    """A module that is no block."""

    def __init__(self, inner: nn.Module, flow: _Flow) -> None:
        super().__init__(inner)
        self.__dict__["flow"] = flow

    def forward(self, *args: Any, **facts: Any) -> Any:
        made, flow = super().forward(*args, **facts), self.__dict__["flow"]
        taint = flow.taint and (not flow.called or _is_tainted((args, facts)))
        return tree_map(_tainted, made) if taint else made


class _Block(Ghost):
    """One of them."""

    def __init__(self, inner: nn.Module, flow: _Flow, number: int) -> None:
        super().__init__(inner)
        self.__dict__["flow"], self.__dict__["number"] = flow, number

    def forward(self, *args: Any, **facts: Any) -> Any:
        self.__dict__["flow"].enter(self.__dict__["number"], args, facts)
        return self.__dict__["flow"].leave(self.__dict__["number"], super().forward(*args, **facts))


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The very numbers: what is computed from them lies elsewhere, since each answer of a ghost has its own memory."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.dtype == other.dtype


def _tainted(value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    return torch.full((), math.nan, dtype=value.dtype, device=value.device).expand(value.shape)


def _is_tainted(value: Any) -> bool:
    leaves, _ = tree_flatten(value)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return any(bool(each.isnan().any()) for each in tensors)
