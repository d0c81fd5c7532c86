"""A training whose pace is set, for `sublet study live`. Run with `python examples/train_paced.py`.

Real tensors, a real session and real messages, and a sleep where an accelerator would compute: a micro-batch takes
FIXED_S and SAMPLE_S for each of its samples. An exchange takes longer the more take part: all but the first are late by
that, and the first, which measures, waits for them. Nobody tells these numbers to a profile.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train

FEATURES = 32
FIXED_S, SAMPLE_S = 0.02, 0.02
EXCHANGE_S, MEMBER_S = 0.008, 0.004  # of two, and for each that there are more


def main() -> None:
    """One pass over the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16)
    samples, batch = vars(parser.parse_args()).values()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(samples, FEATURES)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh())
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with train.session(model, optimizer, dataset, global_batch=batch, batch_range=(batch, batch), epochs=1) as s:
        for _ in s.epochs():
            for x, y in s:
                late_s = EXCHANGE_S + MEMBER_S * (s.world - 2) if s.rank else 0.0
                time.sleep(FIXED_S + SAMPLE_S * len(x) + late_s)
                s.step(nn.functional.mse_loss(model(x), y))
    if s.rank == 0:
        print(f"{s.steps} steps, loss {s.loss:.3f}")


if __name__ == "__main__":
    main()
