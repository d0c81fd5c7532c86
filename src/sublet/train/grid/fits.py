"""What cannot be trained in parts, said when the session is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.blocks import Blocks
from sublet.train.elementwise import check_one_by_one
from sublet.train.options import Options

__all__ = ["check_fits"]

BY_BLOCK = "compiled block by block where it is cut: for block in model.blocks: block.compile()"
WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def check_fits(model: Any, optimizer: Any, options: Options) -> None:
    """InvalidValue, with the way out."""
    _check_kinds(model, optimizer, options)
    if isinstance(optimizer, torch.optim.Optimizer):
        check_one_by_one(optimizer)
    if options.loss is None:
        raise InvalidValue("loss", None, "given where the model is cut: loss=f, of the last output and the batch")
    if options.micro_batch is None:
        raise InvalidValue("micro_batch", None, "given where the model is cut: parts work on micro-batches in turn")
    if options.batch_range is not None:
        raise InvalidValue("batch_range", options.batch_range, "none where the model is cut: the batch is fixed")
    if options.sums:
        raise InvalidValue("reduction", options.reduction, "'mean' where the model is cut")
    if options.scaler is not None:
        raise InvalidValue("scaler", "a GradScaler", "none where the model is cut: bfloat16 needs none")
    if options.clip_value is not None:
        raise InvalidValue("clip_value", options.clip_value, "clip_norm where the model is cut")
    if "SUBLET_CONTROL_FD" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidValue("parts", "under torchrun", "under a controller, which seats the workers; or one worker")
    running = [name for name, each in model.named_modules() if getattr(each, "track_running_stats", False)]
    if running:
        raise InvalidValue("model", running[0], "without running statistics where it is cut: they are of one copy")


def _check_kinds(model: Any, optimizer: Any, options: Options) -> None:
    if not isinstance(options.parts, Blocks):
        raise InvalidValue(
            "parts", options.parts, 'train.Blocks("transformer.h"), with the name of your list of blocks'
        )
    for field, given in (("model", model), ("optimizer", optimizer)):
        if isinstance(given, Mapping):
            allowed = "one where the model is cut: give one optimizer several parameter groups, or leave out parts="
            raise InvalidValue(field, f"{len(given)} by name", allowed)
    if not isinstance(model, torch.nn.Module):
        raise InvalidValue("model", type(model).__name__, "a torch.nn.Module")
    kind = type(model).__name__
    if kind in WRAPPERS:
        raise InvalidValue("model", kind, "the module that it wraps: the session adds up gradients itself")
    if _is_compiled(model) or model._compiled_call_impl is not None:  # noqa: SLF001 - torch has no other place for it
        raise InvalidValue("model", "torch.compile(model)", BY_BLOCK)


def _is_compiled(value: Any) -> bool:
    return type(value).__name__ == "OptimizedModule"  # torch's own name for it; to import the class takes seconds
