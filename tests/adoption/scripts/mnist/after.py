"""A classifier with dropout and a schedule by the epoch, as in PyTorch's example `mnist`."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from sublet import train

torch.manual_seed(1)
images = torch.randn(192, 36)
labels = (images[:, :18].sum(1) > 0).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(36, 32), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 2))
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)

with train.session(model, optimizer, loader, epochs=5, scheduler=scheduler, scheduler_every="epoch") as s:
    for epoch in s.epochs():
        model.train()
        for data, target in s:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            s.step(loss)
        print(epoch, loss.item())

torch.save(model.state_dict(), "model.pt")
