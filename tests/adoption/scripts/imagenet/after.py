"""A network with batch norm, a loader with workers, and a look at held-out samples, as in PyTorch's `imagenet`."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from sublet import train

torch.manual_seed(1)
pictures = torch.randn(192, 3, 8, 8)
labels = (pictures.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(pictures, labels), batch_size=16, shuffle=True, num_workers=1)
held_out = TensorDataset(pictures[:50], labels[:50])
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = StepLR(optimizer, step_size=2, gamma=0.1)


def validate():
    model.eval()
    with torch.no_grad():
        return F.cross_entropy(model(held_out.tensors[0]), held_out.tensors[1]).item()


with train.session(model, optimizer, loader, epochs=5, scheduler=scheduler, scheduler_every="epoch") as s:
    for epoch in s.epochs():
        model.train()
        for images, target in s:
            loss = F.cross_entropy(model(images), target)
            optimizer.zero_grad()
            s.step(loss)
        print(epoch, validate())

torch.save(model.state_dict(), "model.pt")
