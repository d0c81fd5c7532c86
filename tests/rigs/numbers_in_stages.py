"""A small model in stages that learns numbers from numbers, and its data."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sublet import train

WIDTH, SAMPLES, BATCH, MICRO = 6, 40, 8, 4


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.up(x)))


def a_net(dropout=0.0, around=nn.Sequential, blocks=3):
    torch.manual_seed(3)
    stages = [around(Block(dropout)) for _ in range(blocks)]
    return train.Stages(nn.Linear(3, WIDTH), stages, nn.Linear(WIDTH, 1))


def data(count=SAMPLES):
    generator = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(count, 3, generator=generator), torch.randn(count, 1, generator=generator))


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def loss_on(model):
    return lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1])


def squared(output, batch):
    return nn.functional.mse_loss(output, batch[1])
