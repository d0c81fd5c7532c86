"""A network that soon learns its noise by heart: the best on held-out data is kept in a file, and it stops early."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sublet import train

EPOCHS, PATIENCE = 20, 6

torch.manual_seed(3)
features = torch.randn(224, 10)
labels = (features[:, 0] + 1.5 * torch.randn(224) > 0).long()
train_loader = DataLoader(TensorDataset(features[:96], labels[:96]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(features[96:], labels[96:]), batch_size=64)

model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss()

best_loss, bad_epochs = float("inf"), 0
history = []
with train.session(model, optimizer, train_loader, epochs=EPOCHS, clip_norm=1.0) as s:
    kept = s.keep(bad_epochs=bad_epochs, best_loss=best_loss, history=history)
    for epoch in s.epochs():
        model.train()
        for x, y in s:
            loss = criterion(model(x), y)
            s.step(loss)
            norm = s.grad_norm

        model.eval()
        with torch.no_grad():
            val_loss = sum(criterion(model(x), y).item() for x, y in val_loader) / len(val_loader)
        kept.history.append(val_loss)
        print(f"epoch {epoch}: {val_loss:.4f}, best {kept.best_loss:.4f}, gradient {norm:.3f}")
        if val_loss < kept.best_loss:
            kept.best_loss, kept.bad_epochs = val_loss, 0
            if s.rank == 0:
                torch.save(model.state_dict(), "best.pt")
        else:
            kept.bad_epochs += 1
            if kept.bad_epochs >= PATIENCE:
                break

print(f"the best was {kept.best_loss:.4f}, of {len(kept.history)} epochs")
torch.save(model.state_dict(), "model.pt")
