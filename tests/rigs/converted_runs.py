"""A training script as text, run in this process: as it is, converted, and converted and struck at a step."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.reading import Script
from sublet.train.checkpoint import restarted
from sublet.train.sessions import copies

__all__ = ["Struck", "converted", "differs", "run", "run_struck"]


class Struck(Exception):
    """The process is gone, and has left a checkpoint."""


def converted(source: str) -> str:
    """What `sublet convert` makes of it; CannotConvert if nothing."""
    return convert(Script(Path("train.py"), source)).text


def run(source: str, folder: Path) -> dict[str, Any]:
    """`model.pt`, which it writes at its end. Checkpoints are below the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with _inside(folder), contextlib.redirect_stdout(io.StringIO()):
        random.seed(0)
        exec(compile(source, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own text
    return torch.load(folder / "model.pt", weights_only=False)  # type: ignore[no-any-return]  # what it says


def run_struck(source: str, folder: Path, *steps: int) -> dict[str, Any]:
    """The same, by as many processes as there are strikes and one: each goes on from a checkpoint of that step."""
    for step in steps:
        with _strike_at(step), contextlib.suppress(Struck):
            run(source, folder)
    return run(source, folder)


def differs(one: Any, other: Any) -> float:
    """By how much at most, of numbers beyond 1 by which part; all that is no tensor is equal, or it is infinite.

    Of a loss of 600 single precision has every 16384th: rounded the other way it is 6e-5 off.
    """
    if isinstance(one, dict):
        same = isinstance(other, dict) and list(one) == list(other)
        return max((differs(one[key], other[key]) for key in one), default=0.0) if same else float("inf")
    if isinstance(one, torch.Tensor):
        if not (isinstance(other, torch.Tensor) and one.shape == other.shape):
            return float("inf")
        ours, theirs = one.detach().double(), other.detach().double()
        return float(((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max())
    return 0.0 if one == other else float("inf")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before, place = Path.cwd(), os.environ.get("SUBLET_CHECKPOINT_DIR")
    os.environ["SUBLET_CHECKPOINT_DIR"] = str(folder / "checkpoints")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("SUBLET_CHECKPOINT_DIR")
        if place is not None:
            os.environ["SUBLET_CHECKPOINT_DIR"] = place


@contextlib.contextmanager
def _strike_at(step: int) -> Iterator[None]:
    """After so many steps, at the place where a session obeys orders, or at the tick of a loop of its own."""
    boundary, tick = copies.Copies.boundary, restarted.Restarted.tick

    def struck(self: copies.Copies) -> None:
        boundary(self)
        if self.progress.steps == step:
            self.writing.tick(1e9, self.members.group, asked=True, agreed=False)
            raise Struck

    def struck_tick(self: restarted.Restarted, done: int) -> None:
        if done == step:
            self._noticed.set()
        try:
            tick(self, done)
        except SystemExit:
            raise Struck from None

    copies.Copies.boundary, restarted.Restarted.tick = struck, struck_tick  # type: ignore[method-assign]
    try:
        yield
    finally:
        copies.Copies.boundary, restarted.Restarted.tick = boundary, tick  # type: ignore[method-assign]
