"""A small model whose optimizer's state is in ranges, as a job, and as one process that is left alone: its truth.

    python mlp_in_ranges.py FOLDER STEPS PACE_MS

Every worker writes into FOLDER, before each step, which samples it has of it, their loss, in how wide a group, and how
much its optimizer keeps. A step takes PACE_MS until somebody has seen enough (a file `enough` in FOLDER), ever longer
so that no story comes too late, and no time afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from sublet import train

FEATURES, HIDDEN, SAMPLES, BATCH, SEED, CLIP = 6, 16, 96, 24, 5, 0.5


class Asked(Dataset):
    """Remembers which samples were asked for."""

    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        self.y = self.x.sin().sum(1, keepdim=True)
        self.asked = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.asked.append(index)
        return self.x[index], self.y[index]


class TwoHeads(nn.Module):
    """They take turns, so that one of them has no gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.heads = nn.Linear(FEATURES, HIDDEN), nn.ModuleList(nn.Linear(HIDDEN, 1) for _ in range(2))

    def forward(self, x, step):
        return self.heads[step // 3 % 2](self.first(x).tanh())


def a_model():
    torch.manual_seed(3)
    return TwoHeads().double()


def an_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)


def a_schedule(optimizer, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


def kept_numbers(optimizer):
    kept = [each for state in optimizer.state.values() for each in state.values()]
    return sum(each.numel() for each in kept if isinstance(each, torch.Tensor) and each.dim())


def main(folder, steps, pace_s):
    torch.set_num_threads(1)
    model, data = a_model(), Asked()
    optimizer = an_optimizer(model)
    enough, path = folder / "enough", folder / f"{os.environ['SUBLET_WORKER_ID']}.jsonl"
    path.with_suffix(".pid").write_text(str(os.getpid()), encoding="ascii")
    facts = {"global_batch": BATCH, "clip_norm": CLIP, "seed": SEED, "scheduler": a_schedule(optimizer, steps)}
    facts["probe"] = False  # each batch is one of a step
    with path.open("a", encoding="ascii") as file, train.session(model, optimizer, data, **facts) as s:
        for x, y in s.batches(epochs=steps * BATCH // SAMPLES):
            loss = nn.functional.mse_loss(model(x, s.steps), y)
            row = {"step": s.steps, "generation": s.generation, "world": s.world, "samples": data.asked}
            row |= {"loss": loss.item(), "kept": kept_numbers(optimizer)}
            print(json.dumps(row), file=file)
            file.flush()
            data.asked = []
            if not enough.exists():
                time.sleep(pace_s * max(1, s.steps - 15))
            s.step(loss)


def said(folder):
    """Of each step what its workers wrote, the last time that it was made."""
    rows = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    steps = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    return {
        step: [row for row in found if row["generation"] == max(each["generation"] for each in found)]
        for step, found in sorted(steps.items())
    }


def alone(steps):
    """(samples, mean loss) of each step, of one process that knows nothing of Sublet but how samples are shuffled."""
    from sublet.train.data.samples import mixed

    model, data, found = a_model(), Asked(), []
    optimizer = an_optimizer(model)
    schedule = a_schedule(optimizer, steps)
    for step in range(steps):
        epoch, offset = divmod(step * BATCH, SAMPLES)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(mixed(SEED, epoch)))
        chosen = order[offset : offset + BATCH]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data.x[chosen], step), data.y[chosen])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        found.append((sorted(chosen.tolist()), loss.item()))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3)
