"""Fine-tune in half precision: accumulated gradients, clipping, warm-up, the best on held-out data, early stopping."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

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
for epoch in range(EPOCHS):
    model.train()
    optimizer.zero_grad()
    for i, (x, y) in enumerate(train_loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(x), y) / ACCUMULATE
        scaler.scale(loss).backward()
        if (i + 1) % ACCUMULATE == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
    model.eval()
    with torch.no_grad():
        val_loss = sum(evaluate(batch).item() * len(batch[1]) for batch in val_loader) / len(held_out)
    if stopper(val_loss):
        break
torch.save(stopper.weights, "model.pt")
