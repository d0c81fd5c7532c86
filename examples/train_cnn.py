"""A small convolutional network that tells drawn shapes apart. Run with `python examples/train_cnn.py`."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train

SIDE = 16
KINDS = ("disc", "square", "cross", "ring")


def shapes(samples: int, seed: int = 0) -> TensorDataset:
    """Shapes of random size and place on a noisy ground."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(KINDS), (samples,), generator=generator)
    centre = 5.0 + 6.0 * torch.rand(samples, 2, 1, 1, generator=generator)
    size = 2.5 + 2.0 * torch.rand(samples, 1, 1, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    down, across = (rows - centre[:, 0]).abs(), (columns - centre[:, 1]).abs()
    far = (down**2 + across**2).sqrt()
    drawn = torch.stack(
        [
            far < size,
            torch.maximum(down, across) < size * 0.9,
            (torch.minimum(down, across) < 1.0) & (torch.maximum(down, across) < size),
            (far < size) & (far > size - 1.5),
        ]
    )
    images = drawn[labels, torch.arange(samples)].float() + 0.3 * torch.randn(samples, SIDE, SIDE, generator=generator)
    return TensorDataset(images[:, None], labels)


def main() -> None:
    """Train, and say how many shapes it has not seen before it gets right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=6_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="wait so long, as for an accelerator")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, len(KINDS))),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    steps = options.epochs * -(-options.samples // options.batch)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    with train.session(model, optimizer, shapes(options.samples), global_batch=options.batch, scheduler=scheduler) as s:
        for images, labels in s.batches(epochs=options.epochs):
            time.sleep(options.ms_per_sample * len(images) / 1e3)
            s.step(nn.functional.cross_entropy(model(images), labels))
    if s.rank == 0:
        images, labels = shapes(1_000, seed=1).tensors
        with torch.no_grad():
            right = (model.eval()(images).argmax(1) == labels).float().mean().item()
        print(f"{s.steps} steps, loss {s.loss:.3f}, {right:.1%} of new shapes right")


if __name__ == "__main__":
    main()
