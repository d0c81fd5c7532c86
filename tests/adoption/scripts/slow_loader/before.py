"""A dataset whose samples take a while, and draw random numbers, in the workers of a loader."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


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

for epoch in range(5):
    for noisy, clean in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(noisy), clean)
        loss.backward()
        optimizer.step()

torch.save(model.state_dict(), "model.pt")
