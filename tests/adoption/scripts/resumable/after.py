"""A script with arguments, a compiled model, and checkpoints of its own with `--resume`."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sublet import train

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lr", type=float, default=0.05)
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

with train.session(model, optimizer, train_loader, epochs=args.epochs) as s:
    kept = s.keep(best_acc=0.0, scheduler=scheduler)
    for epoch in s.epochs():
        for x, y in s:
            loss = nn.functional.cross_entropy(compiled(x), y)
            optimizer.zero_grad(set_to_none=True)
            s.step(loss)
            if s.steps % 10 == 0:
                print(f"step {s.steps}: {loss.item():.4f}")
        scheduler.step()
        with torch.no_grad():
            accuracy = (compiled(images[256:]).argmax(1) == labels[256:]).float().mean().item()
        if accuracy > kept.best_acc:
            kept.best_acc = accuracy
            if s.rank == 0:
                torch.save(model.state_dict(), "best.pt")
        if s.rank == 0:
            save_checkpoint(epoch + 1, kept.best_acc)

torch.save(model.state_dict(), "model.pt")
