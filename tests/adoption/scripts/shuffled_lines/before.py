"""Text files read line by line through a shuffle buffer, endlessly; held-out loss every few steps; an EMA is kept."""

import json
import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

STEPS, EVAL_EVERY, BATCH = 60, 10, 16

folder = Path("lines")
folder.mkdir(exist_ok=True)
for number in range(0 if list(folder.iterdir()) else 8):
    draw = random.Random(number)
    rows = [[draw.gauss(0, 1) for _ in range(6)] for _ in range(40)]
    (folder / f"{number}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


class Lines(IterableDataset):
    def __init__(self, paths, buffer=16):
        self.paths, self.buffer = paths, buffer

    def lines(self):
        info = get_worker_info()
        paths = self.paths if info is None else self.paths[info.id :: info.num_workers]
        while True:
            random.shuffle(paths)
            for path in paths:
                yield from path.read_text().splitlines()

    def __iter__(self):
        held = []
        for line in self.lines():
            held.append(line)
            if len(held) == self.buffer:
                row = json.loads(held.pop(random.randrange(len(held))))
                noise = torch.randn(5) * 0.01
                yield torch.tensor(row[:5]) + noise, torch.tensor(row[5:])


torch.manual_seed(0)
random.seed(0)
loader = DataLoader(Lines(sorted(folder.glob("*.jsonl"))), batch_size=BATCH, num_workers=2)
model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS + 1)
ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
held_x, held_y = torch.randn(64, 5), torch.randn(64, 1)

for step, (x, y) in enumerate(loader, 1):
    loss = nn.functional.smooth_l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    ema.update_parameters(model)
    if step % EVAL_EVERY == 0:
        with torch.no_grad():
            print(step, nn.functional.smooth_l1_loss(ema(held_x), held_y).item(), flush=True)
    if step == STEPS:
        break
torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "model.pt")
