"""Tied weights, a layer that no step uses, an embedding, parameter groups."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
words = torch.randint(0, 20, (192, 5))
loader = DataLoader(TensorDataset(words, words.roll(1, 1)), batch_size=16, shuffle=True)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 20, bias=False)
        self.unused = nn.Linear(4, 4)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.inner(self.embed(x).cumsum(1)))


model = Odd()
rest = [*model.inner.parameters(), *model.unused.parameters()]
groups = [{"params": [model.embed.weight], "weight_decay": 0.0}, {"params": rest, "lr": 0.01}]
optimizer = torch.optim.SGD(groups, lr=0.05)

for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()

torch.save(model.state_dict(), "model.pt")
