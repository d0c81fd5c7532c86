"""A stream that has no length, read by the workers of a loader, for so many steps."""

from itertools import count

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from sublet import train


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in count(info.id, info.num_workers):
            clean = torch.randn(12, generator=torch.Generator().manual_seed(number))
            yield clean + 0.1 * torch.randn(12), clean


torch.manual_seed(1)
loader = DataLoader(Stream(), batch_size=16, num_workers=2)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

with train.session(model, optimizer, loader, steps=60) as s:
    for noisy, clean in s:
        loss = F.mse_loss(model(noisy), clean)
        s.step(loss)

torch.save(model.state_dict(), "model.pt")
