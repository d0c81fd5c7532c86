"""What a session says before it joins: whether its optimizer's state may be in ranges, and what it takes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from sublet.errors import InvalidValue
from sublet.train.sessions.cannot import RANGES, Asked, check_fits
from sublet.train.shards.moments import Moments
from sublet.train.state.state import State

__all__ = ["Fits", "fits_of", "memory_of", "moments_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """As `wire.Ready` has it; what was not asked for is not told."""

    ranges: bool = False
    weight_bytes: int = 0
    moment_bytes: int = 0
    device_bytes: int = 0


def fits_of(state: State) -> Fits:
    """Where SUBLET_SHARDS is auto or on. InvalidValue if it is on and this optimizer cannot."""
    asked = os.environ.get("SUBLET_SHARDS", "off")
    if asked not in ("auto", "on"):
        return Fits()
    found, everything = memory_of(state.model), list(state.model.parameters())
    if not found.device_bytes and asked == "auto":
        return Fits()  # nothing to choose by
    try:
        moments = moments_of(state, [each for each in everything if each.requires_grad])
    except InvalidValue:
        if asked == "on":
            raise
        return found
    return replace(found, ranges=True, moment_bytes=moments.whole_bytes)


def memory_of(model: torch.nn.Module) -> Fits:
    """What its weights and their gradients take, and what there is on its device; 0 on a CPU, where nobody counts."""
    everything = list(model.parameters())
    device = everything[0].device
    weights = sum(each.numel() * each.element_size() * (2 if each.requires_grad else 1) for each in everything)
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return Fits(weight_bytes=weights, device_bytes=memory)


def moments_of(state: State, trained: Iterable[torch.nn.Parameter]) -> Moments:
    """What its optimizer keeps, to be cut into ranges; InvalidValue if that cannot be."""
    check_fits(RANGES, Asked(state, optimizer=state.optimizer))
    return Moments(state.optimizer, trained)
