"""A dataset whose samples take a while, and draw random numbers, in the workers of a loader."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from sublet import train


class Slow(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        time.sleep(0.001)
        clean = torch.randn(12, generator=torch.Generator().manual_seed(index))
        return clean + 0.1 * torch.randn(12), clean


torch.manual_seed(1)
loader = DataLoader(Slow(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

with train.session(model, optimizer, loader, epochs=5) as s:
    for noisy, clean in s:
        loss = F.mse_loss(model(noisy), clean)
        s.step(loss)

torch.save(model.state_dict(), "model.pt")
