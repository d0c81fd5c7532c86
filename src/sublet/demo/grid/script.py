"""A small GPT in stages, whose computing takes as long as it is told.

    python -m sublet.demo.grid.script FOLDER [--unit-ms 9 --samples 600 --batch 24 ...]

Tensors, gradients, messages and updates are real. A block sleeps a third of a unit forward and two thirds backward, for
each micro-batch: what a machine with few cores can do does not decide how fast a grid is. In fewer parts than it is
told to fit in it runs out of memory, as torch says it of a GPU.

Each worker writes what it did to `FOLDER/<worker>`, a line of JSON for each step: `diaries.Row`. Before it comes one
for each micro-batch, without a loss: a step may be applied whose worker has to go before it can say so.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from sublet import train

WIDTH, HEADS, VOCAB, CONTEXT = 32, 2, 32, 16
FORWARD = 1.0 / 3.0  # of a unit; the rest is backward


class _Paced(torch.autograd.Function):
    """The same tensor, later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, unit_s: float) -> torch.Tensor:
        ctx.unit_s = unit_s
        time.sleep(unit_s * FORWARD)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.unit_s * (1.0 - FORWARD))
        return grads[0], None


class Block(nn.Module):
    """Attention and a perceptron, with dropout, and a sum past each."""

    def __init__(self, unit_s: float) -> None:
        super().__init__()
        self.unit_s = unit_s
        self.ln_1, self.ln_2, self.drop = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the same shape."""
        x = _Paced.apply(x, self.unit_s)  # type: ignore[no-untyped-call]  # torch does not say
        many, length, width = x.shape
        heads = (many, length, HEADS, width // HEADS)
        q, k, v = (each.view(heads).transpose(1, 2) for each in self.qkv(self.ln_1(x)).split(width, dim=2))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(many, length, width)))
        found: torch.Tensor = x + self.drop(self.down(functional.gelu(self.up(self.ln_2(x)))))
        return found


class Words(nn.Module):
    """Words in."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """With their places."""
        found: torch.Tensor = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return found


def a_gpt(blocks: int, unit_s: float) -> train.Stages:
    """Words in, scores of the next word out."""
    last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False))
    return train.Stages(Words(), [Block(unit_s) for _ in range(blocks)], last)


class Lines(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Numbers that rise, each line at its own pace; it says which one is taken."""

    def __init__(self, count: int, takes: Callable[[int], None]) -> None:
        self.count, self.takes = count, takes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.takes(index)
        row = (torch.arange(CONTEXT + 1) * (1 + index % 5) + index) % VOCAB
        return row[:-1], row[1:]


def main(arguments: Iterable[str] | None = None) -> None:
    """Train, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--unit-ms", type=float, default=9.0)
    parser.add_argument("--fits-in", type=int, default=1)
    asked = parser.parse_args(None if arguments is None else list(arguments))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = a_gpt(asked.blocks, asked.unit_ms / 1e3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    name = os.environ.get("SUBLET_WORKER_ID", "alone")
    diary = os.open(asked.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    made: dict[str, Any] = {}

    def begins() -> None:
        """A step, or one that is made again."""
        tries = {"worker": name, "generation": s.generation, "step": s.steps, "grid": s.grid, "place": s.place}
        if any(made.get(key) != value for key, value in tries.items()):
            made.clear()
            made.update(tries, samples=[], since_s=time.monotonic(), told=-1)

    def takes(index: int) -> None:
        if model.training:  # else the session looks at the first of them
            begins()
            made["samples"].append(index)

    def runs(*_: Any) -> None:
        """A block; the samples have been taken."""
        if not model.training:
            return
        begins()
        if s.generation and s.grid[1] < asked.fits_in:
            raise torch.OutOfMemoryError(f"a pretended GPU holds a part of {asked.fits_in}, and no more")
        if made["told"] != len(made["samples"]):
            made["told"] = len(made["samples"])
            write()

    def write(**more: Any) -> None:
        facts = {**made, **more}
        del facts["told"]
        os.write(diary, (json.dumps(facts) + "\n").encode())

    for block in model.blocks:
        block.register_forward_pre_hook(runs)
    with train.session(
        model,
        optimizer,
        Lines(asked.samples, takes),
        epochs=asked.epochs,
        global_batch=asked.batch,
        micro_batch=asked.micro,
        clip_norm=1.0,
        loss=lambda scores, batch: functional.cross_entropy(scores.flatten(0, 1), batch[1].flatten()),
    ) as s:
        for batch in s.batches():
            s.step(batch)
            if made.get("step") == s.steps - 1 and s.place != (-1, -1):
                write(loss=s.loss.hex(), at_s=time.monotonic())


if __name__ == "__main__":
    main()
