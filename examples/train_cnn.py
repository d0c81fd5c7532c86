"""A small convolutional network that tells circles from squares, elastic.

Alone, `python examples/train_cnn.py`, it is plain PyTorch in one process.
"""

from __future__ import annotations

import argparse

import torch
from pace import Pace
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sublet import train

SIDE = 16  # pixels


def pictures(count: int) -> TensorDataset:
    """Noisy circles (0) and squares (1) of random size, anywhere in the picture."""
    generator = torch.Generator().manual_seed(0)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    down, right = (rows - uniform(5, SIDE - 6)).abs(), (columns - uniform(5, SIDE - 6)).abs()
    size, which = uniform(2.5, 5.0), torch.randint(0, 2, (count,), generator=generator)
    circle, square = (down**2 + right**2).sqrt() < size, torch.maximum(down, right) < size * 0.886  # of equal area
    shape = torch.where(which[:, None, None] == 0, circle, square).float()
    noise = 0.3 * torch.randn(count, SIDE, SIDE, generator=generator)
    return TensorDataset((shape + noise)[:, None], which)


def main() -> None:
    """Train, and say how well it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4_096)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="pretend that an accelerator needs so long")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 4) ** 2, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pace = Pace(asked.ms_per_sample)
    with train.session(model, optimizer, pictures(asked.samples), global_batch=128) as session:
        for picture, which in session.batches(epochs=asked.epochs):
            session.step(nn.functional.cross_entropy(model(picture), which))
            pace.keep(len(picture))
        if session.rank == 0:
            print(f"{session.steps} steps, loss {session.loss:.4f}")


if __name__ == "__main__":
    main()
