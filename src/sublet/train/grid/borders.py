"""What stands at the borders of a part: its first block takes what came, the first block behind it ends the forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sublet.errors import InvalidValue
from sublet.train.grid.absent import Absent, past_the_blocks
from sublet.train.grid.ghosts import Stand

__all__ = ["First", "Next", "PartEnd", "carried", "skipped", "stopped", "taken_by"]


class PartEnd(BaseException):
    """Leaves the user's forward; no `except Exception` there keeps it."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value


class First(Stand):
    """The first block of a part: it takes what came, from `take`."""

    def __init__(self, inner: nn.Module, take: Callable[[], torch.Tensor]) -> None:
        super().__init__(inner)
        self.__dict__["sublet.take"] = take

    def forward(self, *args: Any, **facts: Any) -> Any:
        """As the block's own."""
        inner, received = self.__dict__["sublet.inner"], self.__dict__["sublet.take"]()
        if received.requires_grad and not torch.is_grad_enabled():
            raise InvalidValue(
                "parts",
                "a block that runs without gradients in a step",
                "of blocks whose activations are kept, or computed again by checkpoint(block, x, use_reentrant=False): "
                "with use_reentrant=True it is hidden what a block takes, and no gradient comes to the part before",
            )
        name = carried(inner, args, facts)
        return inner(received, *args[1:], **facts) if name is None else inner(**{**facts, name: received})


class Next(Stand):
    """The first block of the part behind ours: what it would take is what we send."""

    def __init__(self, inner: nn.Module, number: int) -> None:
        super().__init__(inner)
        self.__dict__["sublet.number"] = number

    def forward(self, *args: Any, **facts: Any) -> Any:
        """It does not run here."""
        raise PartEnd(taken_by(self.__dict__["sublet.number"], self.__dict__["sublet.inner"], args, facts))


def carried(block: nn.Module, args: tuple[Any, ...], facts: dict[str, Any]) -> str | None:
    """The name by which a block gets what goes from block to block: the first that its forward names. None: args[0]."""
    if args:
        return None
    named = inspect.signature(getattr(block, "_orig_mod", block).forward).parameters  # a compiled one names nothing
    return next((name for name in named if name in facts), next(iter(facts), None))


def taken_by(number: int, block: nn.Module, args: tuple[Any, ...], facts: dict[str, Any]) -> torch.Tensor:
    """What goes from block to block: the first that a block gets. InvalidValue if it is no tensor, or none of ours."""
    name = carried(block, args, facts)
    found = next(iter(args), None) if name is None else facts[name]
    if not isinstance(found, torch.Tensor):
        what = f"block {number} that gets no tensor first"
        raise InvalidValue("parts", what, "of blocks that take one tensor of the model, before all else")
    if isinstance(found, Absent):
        raise past_the_blocks(found, f"what block {number} takes")
    return found


def stopped(error: Exception) -> InvalidValue:
    """A forward that runs by itself, and not with others in place of its blocks."""
    return InvalidValue(
        "parts",
        f"a forward that fails when it is cut ({type(error).__name__}: {error})",
        "of a model that takes one tensor from block to block, and nothing else of them: no lists that blocks, or "
        "hooks on what is in them, fill beside it (output_router_logits, output_hidden_states); switch these off",
    )


def skipped(block: int) -> InvalidValue:
    """A border that the forward has not come by."""
    return InvalidValue(
        "parts",
        f"block {block} that is left out of a forward",
        "of blocks that all run in each forward, in the order of their list: what decides on that (LayerDrop, an early "
        "exit) belongs into the block, which returns what it got",
    )
