"""Gradients that are accumulated by hand, in bfloat16, with a moving average of the weights and a bar of progress."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sublet import train

try:
    from tqdm import tqdm
except ImportError:

    def tqdm(over, **_):
        return over


EPOCHS, BATCH, ACCUMULATE, DECAY = 6, 8, 4, 0.9

torch.manual_seed(5)
inputs = torch.randn(256, 16)
targets = inputs[:, :4].prod(1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=BATCH, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))
ema_model = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def update_ema():
    with torch.no_grad():
        for average, weight in zip(ema_model.parameters(), model.parameters(), strict=True):
            average.mul_(DECAY).add_(weight, alpha=1 - DECAY)


more = {"global_batch": BATCH * ACCUMULATE, "micro_batch": BATCH, "clip_norm": 1.0, "extra_state": ema_model}
with train.session(model, optimizer, loader, epochs=EPOCHS, **more) as s:
    for epoch in s.epochs():
        total = 0.0
        for i, (x, y) in enumerate(tqdm(s, desc=f"epoch {epoch}")):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(x), y)
            s.step(loss)
            total += loss.item()
            if s.updated:
                update_ema()
        print(epoch, total)

torch.save({"model": model.state_dict(), "ema": ema_model.state_dict()}, "model.pt")
