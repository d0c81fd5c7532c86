"""A multilayer perceptron that learns which of ten noisy patterns it sees. Run with `python examples/train_mlp.py`."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train

CLASSES, FEATURES = 10, 64


def patterns(samples: int, seed: int = 0) -> TensorDataset:
    """Ten random patterns, each sample one of them under noise."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return TensorDataset(centres[labels] + 2.0 * torch.randn(samples, FEATURES, generator=generator), labels)


def main() -> None:
    """Train, and say how many patterns it has not seen before it gets right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="wait so long, as for an accelerator")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = patterns(options.samples)
    with train.session(model, optimizer, dataset, global_batch=options.batch, epochs=options.epochs) as s:
        for _ in s.epochs():
            for features, labels in s:
                time.sleep(options.ms_per_sample * len(features) / 1e3)
                s.step(nn.functional.cross_entropy(model(features), labels))
    if s.rank == 0:
        features, labels = patterns(2_000, seed=2).tensors
        with torch.no_grad():
            right = (model.eval()(features).argmax(1) == labels).float().mean().item()
        print(f"{s.steps} steps, loss {s.loss:.3f}, {right:.1%} of new patterns right")


if __name__ == "__main__":
    main()
