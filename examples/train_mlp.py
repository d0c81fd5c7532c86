"""A small network that learns to tell two spirals apart, elastic: `sublet submit examples/mlp.yaml`.

Alone, `python examples/train_mlp.py`, it is plain PyTorch in one process.
"""

from __future__ import annotations

import argparse

import torch
from pace import Pace
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train


def spirals(count: int) -> TensorDataset:
    """Points of two spirals with a little noise, and the spiral of each."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.rand(count, generator=generator).sqrt() * 9.0
    which = torch.randint(0, 2, (count,), generator=generator)
    angle = turn + which * torch.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 9.0
    return TensorDataset(points + 0.02 * torch.randn(points.shape, generator=generator), which)


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="pretend that an accelerator needs so long")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pace = Pace(asked.ms_per_sample)
    with train.session(model, optimizer, spirals(asked.samples), global_batch=256) as session:
        for points, which in session.batches(epochs=asked.epochs):
            session.step(nn.functional.cross_entropy(model(points), which))
            pace.keep(len(points))
        if session.rank == 0:
            print(f"{session.steps} steps, loss {session.loss:.4f}")


if __name__ == "__main__":
    main()
