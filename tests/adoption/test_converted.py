"""What `sublet convert` makes of each script runs, and comes to the same weights as what was written by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.reading import Script

torch = pytest.importorskip("torch")

from tests.rigs.converted_runs import converted, differs, run  # noqa: E402
from tests.rigs.scenario import world  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"
CONVERTED = ("best", "dcgan", "everything", "imagenet", "mnist", "nanogpt", "odd", "slow_loader", "vae")


def weights(folder, text):
    folder.mkdir()
    (folder / "train.py").write_text(text)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SUBLET_CHECKPOINT_DIR": str(folder / "checkpoints")}
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, check=True, capture_output=True)
    return torch.load(folder / "model.pt")


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_script_comes_to_the_same(name, tmp_path):
    before, after = (SCRIPTS / name / f"{which}.py" for which in ("before", "after"))
    expected = weights(tmp_path / "by-hand", after.read_text())
    found = weights(tmp_path / "converted", convert(Script.read(before)).text)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


HEAD = """import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(320, 8)
y = 10 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.001)
"""
CARRIES = {
    "an average by hand, a sum that is divided, an evaluation that sums": """
ema = copy.deepcopy(model)


def evaluate():
    with torch.no_grad():
        return F.mse_loss(model(x), y, reduction="sum").item() / len(x)


for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(a), b, reduction="sum")
        loss /= len(a)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.mul_(0.9).add_(p, alpha=0.1)
    print(epoch, evaluate())
torch.save({**model.state_dict(), "ema": ema[0].weight.detach()}, "model.pt")
""",
    "weights that are set aside, rates by the step": """
best, bad, aside = float("inf"), 0, None
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        step = epoch * len(loader) + i
        for group in opt.param_groups:
            group["lr"] = 0.001 * min(1.0, (step + 1) / 30)
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
    with torch.no_grad():
        held_out = F.mse_loss(model(x), y).item() + 1000.0 * epoch
    if held_out < best:
        best, bad, aside = held_out, 0, copy.deepcopy(model.state_dict())
    else:
        bad += 1
        if bad > 5:
            break
model.load_state_dict(aside)
torch.save(model.state_dict(), "model.pt")
""",
    "a function that is called for each epoch": """

def train(net, batches, optimizer, epoch):
    net.train()
    total = 0.0
    for i, (a, b) in enumerate(batches):
        optimizer.zero_grad()
        loss = F.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


for epoch in range(1, 3 + 1):
    loss = train(model, loader, opt, epoch)
    print(epoch, loss)
torch.save(model.state_dict(), "model.pt")
""",
    "epochs that are left early, all of them in a function": """
from tqdm import tqdm


def fit(net, batches, optimizer, epochs, limit):
    seen = 0
    for epoch in range(epochs):
        with tqdm(batches, disable=True) as bar:
            for i, (a, b) in enumerate(bar, 1):
                for group in optimizer.param_groups:
                    group["lr"] = 0.001 / i
                optimizer.zero_grad()
                F.mse_loss(net(a), b).backward()
                optimizer.step()
                seen += len(batches)
                if i >= limit + epoch % 3:
                    break
    return seen


seen = fit(model, loader, opt, 10, 5)
torch.save({**model.state_dict(), "seen": torch.tensor(seen)}, "model.pt")
""",
    "losses that are chosen by dice, an optimizer that a function returns": """
import random

random.seed(3)


def build():
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.001)


net, optimizer = build()
for epoch in range(3):
    for a, b in loader:
        if random.random() < 0.5:
            loss = F.mse_loss(net(a), b)
        else:
            loss = F.l1_loss(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(net.state_dict(), "model.pt")
""",
    "methods of an object, an average in another, a dataset that is told how hard to be": """
class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.level = 0.2

    def set_level(self, level):
        self.level = min(level, 1.0)

    def __len__(self):
        return len(x)

    def __getitem__(self, i):
        return x[i] * self.level, y[i]


class Average:
    def __init__(self, net, decay=0.9):
        self.net = copy.deepcopy(net)
        self.decay = decay

    @torch.no_grad()
    def update(self, net):
        for mine, new in zip(self.net.parameters(), net.parameters()):
            mine.mul_(self.decay).add_(new, alpha=1 - self.decay)


class Trainer:
    def __init__(self, net, rows, epochs):
        self.net = net
        self.rows = rows
        self.batches = DataLoader(rows, batch_size=16, num_workers=1)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        self.average = Average(net)
        self.epochs = epochs
        self.history = []

    def one_epoch(self):
        total = 0.0
        for a, b in self.batches:
            loss = F.mse_loss(self.net(a), b)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.average.update(self.net)
            total += loss.item()
        return total / len(self.batches)

    def held_out(self):
        with torch.no_grad():
            return F.mse_loss(self.net(x), y).item()

    def fit(self):
        for epoch in range(self.epochs):
            self.rows.set_level(0.2 + 0.3 * epoch)
            mean = self.one_epoch()
            self.history.append(self.held_out())
            print(epoch, mean)
        history = torch.tensor(self.history)
        torch.save({**self.net.state_dict(), "average": self.average.net[0].weight, "of": history}, "model.pt")


Trainer(model, Rows(), 3).fit()
""",
}


@pytest.mark.parametrize("name", CARRIES)
def test_what_a_loop_carries_comes_to_the_same_at_two_workers_and_under_strikes(name, tmp_path):
    source = HEAD + CARRIES[name]
    expected = run(source, tmp_path / "plain")
    (tmp_path / "after.py").write_text(converted(source))
    struck = world("resized", tmp_path / "resized", env={"SCRIPT": str(tmp_path)}, module="tests.adoption.strikes")
    assert struck["wide"] >= 5  # steps that two workers made
    assert differs(expected, torch.load(tmp_path / "resized" / "model.pt")) < 1e-5


BY_HAND = """
import random
import numpy as np
from sublet import train

with train.session(model, opt, loader, epochs=3) as s:
    for a, b in s:
        each = [random.random() + np.random.rand() for _ in a]  # seven samples, or eight
        s.step(F.mse_loss(model(a), b))
        if s.updated:
            with open("drawn.txt", "a") as f:
                f.write(f"{s.steps} {random.random()} {np.random.rand()}\\n")
torch.save(model.state_dict(), "model.pt")
"""


def test_workers_with_more_samples_and_with_fewer_draw_alike(tmp_path):
    (tmp_path / "after.py").write_text(HEAD.replace("batch_size=16", "batch_size=15") + BY_HAND)
    struck = world("resized", tmp_path / "resized", env={"SCRIPT": str(tmp_path)}, module="tests.adoption.strikes")
    assert struck["wide"] >= 5
    rows = (tmp_path / "resized" / "drawn.txt").read_text().splitlines()
    assert len(rows) >= len({*rows}) + 5  # two workers said the same
    assert len({*rows}) == len({row.split()[0] for row in rows})  # and never something else


ROWS = """
import csv


class Run:
    def __init__(self, path):
        self.file = open(path, "a", buffering=1)

    def log(self, step):
        self.file.write(f"{step}\\n")


run = Run("steps.txt")
for epoch in range(8):
    for i, (a, b) in enumerate(loader):
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
        run.log(epoch * len(loader) + i)
    with open("epochs.txt", "a", newline="") as f:
        csv.writer(f).writerow([epoch])
run.file.close()
torch.save(model.state_dict(), "model.pt")
"""


def test_rows_are_written_once_at_two_workers_and_under_strikes(tmp_path):
    source = HEAD.replace("batch_size=16", "batch_size=40") + ROWS  # eight steps in an epoch: one ends at two workers
    expected = run(source, tmp_path / "plain")
    (tmp_path / "after.py").write_text(converted(source))
    struck = world("resized", tmp_path / "resized", env={"SCRIPT": str(tmp_path)}, module="tests.adoption.strikes")
    assert struck["wide"] >= 5
    assert differs(expected, torch.load(tmp_path / "resized" / "model.pt")) < 1e-5
    for name in ("steps.txt", "epochs.txt"):
        rows = (tmp_path / "resized" / name).read_text().split()
        assert len({*rows}) == len(rows)
        missing = {*(tmp_path / "plain" / name).read_text().split()} - {*rows}
        assert len(missing) <= 1  # rank 0 may be killed between a step and its row
