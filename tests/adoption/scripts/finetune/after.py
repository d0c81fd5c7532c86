"""Fine-tune in half precision: accumulated gradients, clipping, warm-up, the best on held-out data, early stopping."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from sublet import train

EPOCHS, BATCH, ACCUMULATE, PATIENCE = 20, 8, 4, 3

torch.manual_seed(0)
features = torch.randn(420, 12)
labels = (features[:, :3].sum(1) + 0.3 * torch.randn(420) > 0).long()
training, held_out = random_split(TensorDataset(features, labels), [320, 100])
train_loader = DataLoader(training, batch_size=BATCH, shuffle=True, num_workers=2)
val_loader = DataLoader(held_out, batch_size=50)

model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.weights = patience, float("inf"), 0, None

    def __call__(self, value):
        if value < self.best - 0.06:
            self.best, self.bad, self.weights = value, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience

    def state_dict(self):
        return {"best": self.best, "bad": self.bad, "weights": self.weights}

    def load_state_dict(self, state):
        self.best, self.bad, self.weights = state["best"], state["bad"], state["weights"]


def evaluate(batch):
    x, y = batch
    return criterion(model(x), y)


stopper = EarlyStopping(PATIENCE)
more = {"scaler": scaler, "scheduler": scheduler, "clip_norm": 1.0, "extra_state": stopper, "micro_batch": BATCH}
with train.session(model, optimizer, train_loader, epochs=EPOCHS, global_batch=BATCH * ACCUMULATE, **more) as s:
    for epoch in s.epochs():
        model.train()
        for x, y in s:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = criterion(model(x), y)
            s.step(loss)
        if stopper(s.evaluate(evaluate, val_loader)):
            break
if s.rank == 0:
    torch.save(stopper.weights, "model.pt")
