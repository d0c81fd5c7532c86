"""Half precision with a scaler, a moving average of the weights, a warm-up by steps, clipping."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(192, 12)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).tanh()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = LinearLR(opt, 0.1, 1.0, total_iters=20)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)

for epoch in range(5):
    for data, target in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(data), target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        ema.update_parameters(model)

torch.save(ema.state_dict(), "model.pt")
