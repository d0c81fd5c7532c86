"""A tiny GPT in stages, as a job, and as one process that is left alone: the truth for it.

    python gpt_in_parts.py FOLDER STEPS PACE_MS [PARTS [DISK_S]]

Every worker writes into FOLDER what the loss of each step was, to the bit, and in which grid it was made. A micro-batch
takes PACE_MS until somebody has seen enough (a file `enough` in FOLDER), ever longer so that no story comes too late,
and no time afterwards. In fewer than PARTS parts it runs out of memory, as torch says it of a GPU. What is written to a
disk takes up to DISK_S longer.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from sublet import train
from sublet_lab.notebook import Notebook

BLOCKS, WIDTH, HEADS, VOCAB, CONTEXT = 6, 16, 2, 24, 8
SAMPLES, BATCH, MICRO, SEED, CLIP = 48, 12, 2, 5, 0.7


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        many, length, width = x.shape
        heads = (many, length, HEADS, width // HEADS)
        q, k, v = (each.view(heads).transpose(1, 2) for each in self.qkv(self.ln_1(x)).split(width, dim=2))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(many, length, width))
        return x + self.down(functional.gelu(self.up(self.ln_2(x))))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, ids):
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))


def a_gpt():
    torch.manual_seed(1)
    last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False))
    return train.Stages(Words(), [Block() for _ in range(BLOCKS)], last)


def an_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def text():
    """Each sample is a line of numbers that rise at its own pace."""
    rows = torch.stack([(torch.arange(CONTEXT + 1) * (1 + row % 5) + row) % VOCAB for row in range(SAMPLES)])
    return TensorDataset(rows[:, :-1], rows[:, 1:])


def score(output, batch):
    return functional.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def loss_on(model, batch):
    return score(model(batch[0]), batch)


def slow_down(disk_s):
    rng, sync = random.Random(os.getpid()), os.fsync

    def later(handle):
        time.sleep(rng.random() ** 2 * disk_s)
        sync(handle)

    os.fsync = later


def main(folder, steps, pace_s, least):
    torch.set_num_threads(1)
    model = a_gpt()
    optimizer = an_optimizer(model)
    enough, path = folder / "enough", folder / f"{os.environ.get('SUBLET_WORKER_ID', 'alone')}.jsonl"
    path.with_suffix(".pid").write_text(str(os.getpid()), encoding="ascii")
    with (
        path.open("a", encoding="ascii") as file,
        train.session(
            model,
            optimizer,
            text(),
            global_batch=BATCH,
            micro_batch=MICRO,
            clip_norm=CLIP,
            seed=SEED,
            epochs=-(-steps * BATCH // SAMPLES),
            loss=score,
            tracker=Notebook(folder / "runs"),
        ) as s,
    ):
        made_in = []

        def runs(*_):
            if not enough.exists():
                time.sleep(pace_s / BLOCKS * max(1, s.steps - 15))
            made_in[:] = s.grid
            if s.generation and s.grid[1] < least:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        for block in model.blocks:
            block.register_forward_pre_hook(runs)
        for batch in s.batches():
            s.step(batch)
            s.log({"loss": s.loss})
            grid = made_in if s.place != (-1, -1) else []  # who only keeps has made nothing
            print(json.dumps({"step": s.steps, "loss": s.loss.hex(), "grid": grid, "at": s.place}), file=file)
            file.flush()
            if s.steps == steps:  # amid an epoch, where that is not the end of one
                break


def said(folder):
    """Of each step what the workers wrote: the losses, and the numbers of copies; (step, losses, copies)."""
    rows = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    steps = sorted({row["step"] for row in rows})
    return [
        (
            step,
            {row["loss"] for row in rows if row["step"] == step},
            {row["grid"][0] for row in rows if row["step"] == step and row["grid"]},
        )
        for step in steps
    ]


def alone(copies_of):
    """Losses of one process that knows nothing of Sublet but how samples are shuffled.

    Gradients are summed copy by copy, as many as `copies_of` says of each step.
    """
    from sublet.train.data.samples import MicroBatch, Samples
    from sublet.train.grid.pipeline import atoms, share

    torch.set_num_threads(1)
    model, losses = a_gpt(), []
    optimizer, samples = an_optimizer(model), Samples(text(), SEED, None, None)

    for step, copies in enumerate(copies_of):
        epoch, offset = divmod(step * BATCH, SAMPLES)
        total, loss = [], 0.0
        for copy in range(copies):
            model.zero_grad(set_to_none=False)
            mine = 0.0
            for atom in share(atoms(offset, BATCH, MICRO), copy, copies):
                piece = MicroBatch(start=atom.start, count=atom.count, first=False, last=False)
                found = loss_on(model, samples.load(epoch, piece))
                torch.autograd.backward(found, torch.tensor(atom.count / BATCH))
                mine += float(found.detach()) * (atom.count / BATCH)
            loss += mine
            found = [each.grad.clone() for each in model.parameters()]
            total = [a + b for a, b in zip(total, found, strict=True)] if total else found
        _clip(model, total)
        optimizer.step()
        losses.append(loss.hex())
    return losses


def _clip(model, total):
    """Norms by unit, in double precision, in the order of the units: before the blocks, blocks, after them."""
    names = [name for name, _ in model.named_parameters()]
    units = ["first.", *(f"blocks.{number}." for number in range(BLOCKS)), "last."]
    squares = []
    for unit in units:
        flats = [each.flatten() for name, each in zip(names, total, strict=True) if name.startswith(unit)]
        whole = torch.cat([functional.pad(flat, (0, -flat.numel() % 16)) for flat in flats]).double()
        squares.append(float(torch.dot(whole, whole)))
    norm = math.sqrt(math.fsum(squares))
    for parameter, gradient in zip(model.parameters(), total, strict=True):
        parameter.grad = gradient * (CLIP / norm) if norm > CLIP else gradient


if __name__ == "__main__":
    folder, steps, pace_ms, least, disk_s = (*sys.argv[1:], *("1", "0")[len(sys.argv) - 4 :])
    slow_down(float(disk_s))
    main(Path(folder), int(steps), float(pace_ms) / 1e3, int(least))
