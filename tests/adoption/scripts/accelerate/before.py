"""A loop with accelerate: accumulation, clipping, warm-up, evaluation, its own counters."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(256, 12)
y = x.sum(1, keepdim=True).sin()
loader = DataLoader(TensorDataset(x[:192], y[:192]), batch_size=8, shuffle=True)
held_out = DataLoader(TensorDataset(x[192:], y[192:]), batch_size=16)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model, optimizer, loader, held_out, scheduler = accelerator.prepare(model, optimizer, loader, held_out, scheduler)

for epoch in range(5):
    model.train()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for inputs, targets in held_out:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(F.mse_loss(model(inputs), targets)))
    if accelerator.is_main_process:
        with Path("losses.txt").open("a") as file:
            print(epoch, float(torch.stack(losses).mean()), scheduler.get_last_lr()[0], file=file)

torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
