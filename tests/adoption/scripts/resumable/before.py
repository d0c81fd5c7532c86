"""A script with arguments, a compiled model, and checkpoints of its own with `--resume`."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--resume", default="last.pt")
args, _ = parser.parse_known_args()


def save_checkpoint(epoch, best_acc):
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": best_acc}
    torch.save(state, "last.pt")


torch.manual_seed(7)
images = torch.randn(320, 24)
labels = (images[:, ::2].sum(1) > images[:, 1::2].sum(1)).long()
train_loader = DataLoader(TensorDataset(images[:256], labels[:256]), batch_size=32, shuffle=True, num_workers=1)
model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 2))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

start_epoch, best_acc = 0, 0.0
if Path(args.resume).exists():
    checkpoint = torch.load(args.resume)
    start_epoch, best_acc = checkpoint["epoch"], checkpoint["best"]
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])

global_step = 0
for epoch in range(start_epoch, args.epochs):
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(compiled(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        global_step += 1
        if global_step % 10 == 0:
            print(f"step {global_step}: {loss.item():.4f}")
    scheduler.step()
    with torch.no_grad():
        accuracy = (compiled(images[256:]).argmax(1) == labels[256:]).float().mean().item()
    if accuracy > best_acc:
        best_acc = accuracy
        torch.save(model.state_dict(), "best.pt")
    save_checkpoint(epoch + 1, best_acc)

torch.save(model.state_dict(), "model.pt")
