"""Classes of unequal size, evened out by a weighted sampler; rates that fall by the epoch; the confusion is printed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from sublet import train

EPOCHS = 6


class Rare(Dataset):
    """One in eight is positive."""

    def __init__(self, count=240):
        generator = torch.Generator().manual_seed(3)
        self.y = (torch.arange(count) % 8 == 0).long()
        self.x = torch.randn(count, 10, generator=generator) + self.y[:, None] * 0.7

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index] + 0.05 * torch.randn(10), self.y[index]


torch.manual_seed(0)
data = Rare()
weights = 1.0 / torch.bincount(data.y)[data.y].double()
sampler = WeightedRandomSampler(weights, num_samples=len(data), replacement=True)
loader = DataLoader(data, batch_size=24, sampler=sampler, num_workers=2, drop_last=True)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(
    [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}], lr=0.1, momentum=0.9
)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 5], gamma=0.3)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

with train.session(model, optimizer, loader, epochs=EPOCHS, scheduler=scheduler, scheduler_every="epoch") as s:
    for epoch in s.epochs():
        for x, y in s:
            loss = criterion(model(x), y)
            s.step(loss)
        with torch.no_grad():
            found = model(data.x).argmax(1)
        print(epoch, scheduler.get_last_lr(), torch.bincount(2 * data.y + found, minlength=4).tolist(), flush=True)
torch.save(model.state_dict(), "model.pt")
