"""A loop over steps that draws its batches at random, in the manner of nanoGPT."""

import torch
from torch import nn
from torch.nn import functional as F

from sublet import train

torch.manual_seed(1)
text = torch.randint(0, 16, (2000,)).cumsum(0) % 16
model = nn.Sequential(nn.Embedding(16, 24), nn.Linear(24, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def get_batch():
    starts = torch.randint(len(text) - 9, (16,))
    return torch.stack([text[i : i + 8] for i in starts]), torch.stack([text[i + 1 : i + 9] for i in starts])


ck = train.checkpointed(model=model, optimizer=optimizer, steps=60)
for step in range(ck.resume(), 60):
    x, y = get_batch()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    ck.tick(step + 1)

torch.save(model.state_dict(), "model.pt")
