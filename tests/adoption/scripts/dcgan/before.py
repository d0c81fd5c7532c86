"""Two networks and two optimizers, as in PyTorch's example `dcgan`."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(192, 12) * 2 + 1), batch_size=16, shuffle=True)
netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))
netD = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()

for epoch in range(5):
    for (real,) in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        netD.zero_grad()
        fake = netG(torch.randn(len(real), 4))
        (criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)).backward()
        optD.step()
        netG.zero_grad()
        criterion(netD(fake), ones).backward()
        optG.step()

torch.save({**netG.state_dict(), **{f"D{k}": v for k, v in netD.state_dict().items()}}, "model.pt")
