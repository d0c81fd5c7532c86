"""A module of Lightning with its Trainer: clipping, a schedule, validation, callbacks, a logger, checkpoints."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sublet.integrations.lightning import SubletStrategy


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", F.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


L.seed_everything(1)
x = torch.randn(256, 12)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
training, held_out = torch.utils.data.random_split(data, [192, 64])
model = Regression()
trainer = L.Trainer(
    max_epochs=5,
    accelerator="cpu",
    strategy=SubletStrategy(global_batch=16),
    gradient_clip_val=0.5,
    log_every_n_steps=1,
    enable_progress_bar=False,
    logger=CSVLogger(".", "logs", flush_logs_every_n_steps=1),
    callbacks=[
        LearningRateMonitor(),
        EarlyStopping("val_loss", patience=4),
        ModelCheckpoint("kept", monitor="val_loss"),
    ],
)
trainer.fit(model, DataLoader(training, batch_size=16, shuffle=True), DataLoader(held_out, batch_size=64))

torch.save(model.state_dict(), "model.pt")
