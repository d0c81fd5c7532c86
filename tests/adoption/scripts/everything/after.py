"""Half precision with a scaler, a moving average of the weights, a warm-up by steps, clipping."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LinearLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from sublet import train

torch.manual_seed(1)
x = torch.randn(192, 12)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).tanh()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = LinearLR(opt, 0.1, 1.0, total_iters=20)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)

with train.session(model, opt, loader, epochs=5, scaler=scaler, scheduler=sched, clip_norm=1.0, extra_state=ema) as s:
    for data, target in s:
        loss = F.mse_loss(model(data), target)
        s.step(loss)
        if s.updated:
            ema.update_parameters(model)

torch.save(ema.state_dict(), "model.pt")
