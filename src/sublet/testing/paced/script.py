"""A training script whose computing takes as long as it is told: real tensors, gradients and messages, slept seconds.

    python -m sublet.testing.paced.script FOLDER [--floor-ms 10 --sample-ms 0.5 --sync-ms 5 ...]

A micro-batch of n samples takes floor + n x sample, and a step of several workers sync besides: what a machine with few
cores can do does not decide. It fits w in y = w x to samples without noise in y. There the gradient noise scale is the
number of features + 1, from the first step to the last, and AdaScale's rule is exact: k steps at the initial batch and
one with a gain of k come equally far. With `--blur` y has noise, and the noise scale grows as training goes on. With
`--await-ms` it trains slowly from its half on until its worker count has changed, so that a test has the time.

Each worker writes what it did to `FOLDER/<pid>`, a line of JSON for each step: `Step` reads them again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

from sublet import train

DECAY = 0.9999  # of the learning rate at each step of its schedule, unless told otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One applied step of one worker."""

    generation: int
    workers: int
    rank: int
    step: int  # steps made before it
    done: int  # samples before it
    batch: int
    rate: float  # of learning, in its update
    scheduled: int  # steps of the schedule before it
    distance: float  # of w from where it should be, squared, after it
    at_s: float  # of the machine's monotonic clock, when it ended
    samples: tuple[int, ...]  # which this worker took


def read_steps(folder: Path) -> list[Step]:
    """Steps of all workers that wrote there, in the order of their ends; a line half written is left out."""
    found = []
    for path in sorted(folder.iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                facts = json.loads(line)
                found.append(Step(**{**facts, "samples": tuple(facts["samples"])}))
    return sorted(found, key=lambda step: step.at_s)


class Points(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """x, y, and which one it is."""

    def __init__(self, count: int, features: int, blur: float) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, features, generator=generator)
        self.truth = torch.randn(features, generator=generator) / features**0.5
        self.y = self.x @ self.truth + blur * torch.randn(count, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        return [self[index] for index in indices]


def main(arguments: Iterable[str] | None = None) -> None:
    """Train as asked, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--features", type=int, default=63)
    parser.add_argument("--blur", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--largest", type=int, default=0, help="0 = the batch is fixed")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--rule", default="adascale")
    parser.add_argument("--decay", type=float, default=DECAY)
    parser.add_argument("--until", type=float, default=0.0, help="stop at this squared distance; 0 = after all epochs")
    parser.add_argument("--floor-ms", type=float, default=10.0)
    parser.add_argument("--sample-ms", type=float, default=0.5)
    parser.add_argument("--sync-ms", type=float, default=5.0)
    parser.add_argument(
        "--await-ms", type=float, default=0.0, help="a sample, in its second half, at its first worker count"
    )
    asked = parser.parse_args(None if arguments is None else list(arguments))
    points = Points(asked.samples, asked.features, asked.blur)
    model = torch.nn.Linear(asked.features, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=asked.rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, asked.decay)
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    diary = os.open(asked.folder / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    limits = (asked.batch, asked.largest) if asked.largest else None
    widths = {step.workers for step in read_steps(asked.folder)}
    awaits_from = asked.samples * asked.epochs / 2
    with train.session(
        model,
        optimizer,
        points,
        global_batch=asked.batch,
        epochs=asked.epochs,
        scheduler=schedule,
        batch_range=limits,
        lr_rule=asked.rule,
    ) as s:
        taken: dict[int, None] = {}  # the first micro-batch of all is computed again in parts: its samples count once
        for x, y, indices in s:
            before = (s.steps, s.samples_done, s.global_batch, schedule.last_epoch)
            loss = 0.5 * ((model(x)[:, 0] - y) ** 2).mean()
            taken.update(dict.fromkeys(indices.tolist()))
            sync_ms = asked.sync_ms if s.world > 1 else 0.0
            widths.add(s.world)
            if len(widths) == 1 and before[1] >= awaits_from:
                sync_ms += asked.await_ms * before[2]
            rates.clear()
            time.sleep((asked.floor_ms + asked.sample_ms * len(x)) / 1e3)
            s.step(loss)
            if rates:  # the last micro-batch: all have updated
                time.sleep(sync_ms / 1e3)
            if s.steps == before[0] or not rates:
                continue
            step = Step(
                generation=s.generation,
                workers=s.world,
                rank=s.rank,
                step=before[0],
                done=before[1],
                batch=before[2],
                rate=rates[-1],
                scheduled=before[3],
                distance=float(((model.weight.detach()[0] - points.truth) ** 2).sum()),
                at_s=time.monotonic(),
                samples=tuple(taken),
            )
            os.write(diary, (json.dumps(asdict(step)) + "\n").encode())
            taken.clear()
            if step.distance <= asked.until:  # which all workers see in the same step
                break


if __name__ == "__main__":
    main()
