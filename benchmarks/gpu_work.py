"""A worker that trains a GPT in a session whose batch the plan may change; environment variables say how.

What it writes to GPT_LOG is one line for each micro-batch: the sample that it begins with, how many it has, its loss.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpt import LARGE, TINY, loss_of, made, text_of
from sublet import train
from sublet.train.sessions import report

__all__ = ["start_work", "work"]

WARM = 0.1  # of the training, in which the rate rises
AT_ONCE = 64  # losses fetched from the device


def start_work(_: Path) -> None:
    """In a forked process: become a worker. One that is only forked could not use the GPU if its parent has."""
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu_work"])  # noqa: S606 - ourselves


def work() -> None:
    """Train to the end."""
    told = {
        name: int(os.environ[f"GPT_{name}"]) for name in ("TINY", "SAMPLES", "EPOCHS", "BATCH", "LOW", "HIGH", "MICRO")
    }
    sizes = TINY if told["TINY"] else LARGE
    if sizes is TINY:
        torch.set_num_threads(1)
        report.PROFILE_EVERY_S = 0.2
    torch.set_float32_matmul_precision("high")
    model, optimizer = made(sizes)
    steps = told["SAMPLES"] * told["EPOCHS"] / told["BATCH"]  # of the initial batch
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: part_of_rate(step / steps))
    more: dict[str, Any] = {"batch_range": (told["LOW"], told["HIGH"])} if told["HIGH"] else {}
    with train.session(
        model,
        optimizer,
        text_of(sizes, told["SAMPLES"]),
        global_batch=told["BATCH"],
        epochs=told["EPOCHS"],
        scheduler=scheduler,
        micro_batch=told["MICRO"] or None,
        clip_norm=1.0,
        **more,
    ) as s:
        losses = Losses(os.environ.get("GPT_LOG", ""))
        for pair in s.batches():
            loss = loss_of(model, pair)
            losses.add(s.samples_done, s.global_batch, len(pair[0]), loss)
            s.step(loss)
        losses.write()


def part_of_rate(share: float) -> float:
    """Rises at first, and falls along a cosine to a tenth."""
    return min(1.0, (share + 1e-3) / WARM, 0.55 + 0.45 * math.cos(math.pi * min(share, 1.0)))


class Losses:
    """Kept on the device until there are many: nobody waits for one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: list[tuple[int, int, int, torch.Tensor]] = []
        self._step = self._within = 0

    def add(self, done: int, batch: int, samples: int, loss: torch.Tensor) -> None:
        """A micro-batch of the step that begins with sample `done`."""
        if not self._path:
            return
        self._within = 0 if done != self._step else self._within
        self._step = done
        self._open.append((done + self._within, samples, batch, loss.detach()))
        self._within += samples
        if len(self._open) >= AT_ONCE:
            self.write()

    def write(self) -> None:
        """All that there are."""
        if not self._open:
            return
        found = torch.stack([loss for *_, loss in self._open]).tolist()
        rows = [[*facts, loss] for (*facts, _), loss in zip(self._open, found, strict=True)]
        with Path(self._path).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        self._open.clear()


if __name__ == "__main__":
    work()
