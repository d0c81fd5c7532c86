"""A loss that is a sum over the samples, as in PyTorch's example `vae`."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.rand(192, 24)), batch_size=16, shuffle=True)
encode, decode = nn.Linear(24, 8), nn.Linear(4, 24)
model = nn.ModuleList([encode, decode])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def loss_function(x):
    mu, logvar = encode(x).chunk(2, 1)
    bce = F.binary_cross_entropy_with_logits(decode(mu), x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


for epoch in range(5):
    for (data,) in loader:
        optimizer.zero_grad()
        loss = loss_function(data)
        loss.backward()
        optimizer.step()

torch.save(model.state_dict(), "model.pt")
