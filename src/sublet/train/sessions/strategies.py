"""Which strategy a session trains by: stages where the model is declared so and the job asks for it, else copies."""

from __future__ import annotations

import os
from typing import Any

import torch

from sublet.train.sessions.options import Options
from sublet.train.sessions.strategy import Around, Strategy
from sublet.wire.rehearsal import cue_here

__all__ = ["strategy_of"]


def strategy_of(model: torch.nn.Module, optimizer: Any, dataset: Any, around: Around) -> Strategy:
    """One, with what it needs imported only now."""
    if _in_stages(model, around.options):
        from sublet.train.grid.in_stages import InStages

        return InStages(model, optimizer, dataset, around)
    from sublet.train.sessions.copies import Copies

    return Copies(model, optimizer, dataset, around)


def _in_stages(model: torch.nn.Module, options: Options) -> bool:
    """train.Stages are, a sequence where the job says so (`parallel.stages`)."""
    from sublet.train.grid.stages import Stages, is_staged

    if options.loss is None or not is_staged(model) or cue_here() is not None:  # a rehearsal is of copies
        return False
    return isinstance(model, Stages) or os.environ.get("SUBLET_STAGES", "1") != "1"
