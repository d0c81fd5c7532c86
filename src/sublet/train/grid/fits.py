"""What cannot be trained in stages, said when the session is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from sublet.errors import InvalidValue
from sublet.train.elementwise import check_one_by_one
from sublet.train.options import Options

__all__ = ["check_fits"]

HERE = "where the model is trained in stages"


def check_fits(model: torch.nn.Module, optimizer: Any, options: Options) -> None:
    """InvalidValue, with the way out."""
    if isinstance(optimizer, Mapping):
        allowed = f"one {HERE}: give it several parameter groups"
        raise InvalidValue("optimizer", f"{len(optimizer)} by name", allowed)
    if isinstance(optimizer, torch.optim.Optimizer):
        check_one_by_one(optimizer)
    if options.micro_batch is None:
        raise InvalidValue("micro_batch", None, f"given {HERE}: parts work on micro-batches in turn")
    if options.batch_range is not None:
        raise InvalidValue("batch_range", options.batch_range, f"none {HERE}: the batch is fixed")
    if options.sums:
        raise InvalidValue("reduction", options.reduction, f"'mean' {HERE}")
    if options.scaler is not None:
        raise InvalidValue("scaler", "a GradScaler", f"none {HERE}: bfloat16 needs none")
    if options.clip_value is not None:
        raise InvalidValue("clip_value", options.clip_value, f"clip_norm {HERE}")
    if "SUBLET_CONTROL_FD" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        allowed = "under a controller, which seats the workers; or one worker"
        raise InvalidValue("train.Stages", "under torchrun", allowed)
    running = [name for name, each in model.named_modules() if getattr(each, "track_running_stats", False)]
    if running:
        raise InvalidValue("model", running[0], f"without batch statistics {HERE}: LayerNorm or GroupNorm")
    compiled = model._compiled_call_impl is not None  # noqa: SLF001 - torch has no other place for it
    if compiled:
        raise InvalidValue("model", "model.compile()", f"compiled stage by stage {HERE}: each.compile() of its blocks")
