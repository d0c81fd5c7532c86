"""A Trainer class of one's own: its checkpoints, its averages, rates that fall when held-out loss does not."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sublet import train


class Ema:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self):
        for name, each in self.model.named_parameters():
            self.shadow[name].lerp_(each.detach(), 1 - self.decay)


class Trainer:
    def __init__(self, model, optimizer, loader, held_out, epochs):
        self.model, self.optimizer, self.loader, self.held_out, self.epochs = model, optimizer, loader, held_out, epochs
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
        self.ema, self.history, self.start = Ema(model, 0.9), [], 0

    def state_dict(self):
        return {"shadow": self.ema.shadow, "history": self.history}

    def load_state_dict(self, state):
        self.ema.shadow, self.history = dict(state["shadow"]), list(state["history"])

    def loss_of(self, batch):
        return nn.functional.huber_loss(self.model(batch[0]), batch[1])

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            losses = [self.loss_of(batch).item() for batch in self.held_out]
        self.model.train()
        return sum(losses) / len(losses)

    def fit(self):
        with train.session(self.model, self.optimizer, self.loader, epochs=self.epochs, extra_state=self) as s:
            s.keep(plateau=self.scheduler)
            for epoch in s.epochs():
                for batch in s:
                    loss = self.loss_of(batch)
                    s.step(loss)
                    if s.updated:
                        self.ema.update()
                held_out = self.evaluate()
                self.scheduler.step(held_out)
                self.history.append(held_out)
        torch.save({**self.model.state_dict(), **{f"ema.{k}": v for k, v in self.ema.shadow.items()}}, "model.pt")


def main():
    torch.manual_seed(0)
    x = torch.randn(240, 6)
    y = x.prod(1, keepdim=True).tanh() + 0.1 * torch.randn(240, 1)
    loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=20, shuffle=True)
    held_out = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=40)
    model = nn.Sequential(nn.Linear(6, 40), nn.SiLU(), nn.Linear(40, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    Trainer(model, optimizer, loader, held_out, epochs=8).fit()


if __name__ == "__main__":
    main()
