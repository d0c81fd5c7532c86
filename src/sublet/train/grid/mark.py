"""What a proof is of, in a few letters: a training that goes on from a checkpoint with the same ones asks no more.

The code of the model and of the loss, as the files that it lies in; what the model is made of; the script's arguments,
by which it may be another; and torch, whose own modules are not looked into. Whatever else changes in those files is
taken for a change as well: to prove it once more takes two micro-batches. What changes by other ways (a setting in the
environment, the samples) is not known here.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sublet.train.grid.cutting import Cut

__all__ = ["mark_of"]

KIND = "1"  # of proof: what an earlier one has shown may be less


def mark_of(cut: Cut, loss_of: Callable[..., Any]) -> str:
    """Of a model that is whole, and has been learned."""
    said = hashlib.sha256()
    facts = (KIND, torch.__version__, *map(repr, cut.units), repr(cut.model), *sys.argv[1:])
    for each in facts:
        said.update(each.encode() + b"\0")
    for file in sorted({*_files(cut.model, loss_of)}):
        said.update(hashlib.sha256(_content(file)).digest())
    return said.hexdigest()


def _files(model: torch.nn.Module, loss_of: Callable[..., Any]) -> Iterator[str]:
    """That code of the user's lies in."""
    for kind in {*map(type, model.modules())}:
        if not kind.__module__.startswith("torch."):
            yield getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    while isinstance(loss_of, partial):
        loss_of = loss_of.func
    code = inspect.unwrap(loss_of) if inspect.isroutine(loss_of) else type(loss_of).__call__
    yield getattr(getattr(code, "__code__", None), "co_filename", "")


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # what was typed in has no file
        return b""
