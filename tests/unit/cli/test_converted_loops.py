"""Loops as people write them come to the same weights once they are converted: undisturbed, and struck at two steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import copy
import itertools
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(18, 4)
y = 3 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
n = 0
"""
SAVE = 'torch.save({**model.state_dict(), "n": n}, "model.pt")\n'
LOOPS = {
    "epochs and batches": """
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(a), b)
        loss.backward()
        opt.step()
        n += 1
""",
    "epochs from one, and a number for each batch that rates go by": """
for epoch in range(1, 3 + 1):
    for i, (a, b) in enumerate(loader):
        opt.param_groups[0]["lr"] = 0.02 / (1 + epoch * len(loader) + i)
        loss = F.mse_loss(model(a), b)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
""",
    "a function for each epoch": """
def one_epoch(net, batches, optimizer, epoch):
    global n
    net.train()
    for i, (a, b) in enumerate(batches):
        optimizer.zero_grad()
        loss = F.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        if i % 2 == 0:
            print(f"{epoch} {i}/{len(batches)} {loss.item():.3f}")


for epoch in range(3):
    one_epoch(model, loader, opt, epoch)
""",
    "a function for each step, in one for each epoch, in a class": """
class Trainer:
    def __init__(self, net, batches):
        self.net, self.batches = net, batches
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.02, momentum=0.5)

    def one_batch(self, a, b):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(a), b)
        loss.backward()
        self.optimizer.step()

    def one_epoch(self, epoch):
        for a, b in self.batches:
            self.one_batch(a, b)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.one_epoch(epoch)


Trainer(model, loader).fit(3)
""",
    "an optimizer that a function makes": """
def build():
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.02)


model, opt = build()
for epoch in range(3):
    model.train()
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
""",
    "clipping under a setting, a schedule by the step": """
clip = 0.5
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        if clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        sched.step()
""",
    "a schedule by the epoch, a clipped value, the best kept": """
sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
best, bad, aside = math.inf, 0, None
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        opt.step()
    sched.step()
    with torch.no_grad():
        held = F.mse_loss(model(x), y).item() + 100 * epoch
    if held < best:
        best, bad, aside = held, 0, copy.deepcopy(model.state_dict())
    else:
        bad += 1
    n = bad
model.load_state_dict(aside)
""",
    "a rate that falls when a number does not": """
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
    plateau.step(float(epoch))
""",
    "half precision in one of two ways": """
amp = True
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(a), b)
        if amp:
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "a summed loss": """
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        loss = 0.01 * F.mse_loss(model(a), b, reduction="sum")
        loss.backward()
        opt.step()
""",
    "a moving average, and a copy that is not trained": """
ema = copy.deepcopy(model)
for epoch in range(3):
    for a, b in loader:
        with torch.no_grad():
            target = b + 0.1 * ema(a)
        opt.zero_grad()
        F.mse_loss(model(a), target).backward()
        opt.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.lerp_(p, 0.1)
""",
    "steps that are counted, over a loader without an end": """
step = 0
while step < 12:
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
        step += 1
        if step >= 12:
            break
n = step
""",
    "an iterator that begins anew": """
batches = iter(loader)
step = 0
while True:
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(batches)
    opt.zero_grad()
    F.mse_loss(model(a), b).backward()
    opt.step()
    step += 1
    if step >= 12:
        break
""",
    "epochs that begin where a file says": """
start = 3
for epoch in range(start, 6):
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b * epoch).backward()
        opt.step()
    start = 0
    n = epoch
""",
    "gradients that are only logged": """
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
        for p in model.parameters():
            print(p.grad.norm())
""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_converted_loop_comes_to_the_same(name, tmp_path):
    source = HEAD + LOOPS[name] + SAVE
    expected = run(source, tmp_path / "plain")
    made = converted(source)
    assert ".session(" in made
    assert differs(expected, run(made, tmp_path / "calm")) < 1e-6
    assert differs(expected, run_struck(made, tmp_path / "struck", 3, 7)) < 1e-6


ACCUMULATED = {
    "once in so many batches": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        loss = F.mse_loss(model(a), b) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            opt.step()
            opt.zero_grad()
            n += 1
""",
    "undivided": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        loss = F.mse_loss(model(a), b)
        loss.backward()
        if (i + 1) % 2 == 0:
            opt.step()
            opt.zero_grad()
""",
}


@pytest.mark.parametrize("name", ACCUMULATED)
def test_gradients_that_are_accumulated_are_one_step(name, tmp_path):
    source = HEAD.replace("torch.rand(18", "torch.rand(16") + ACCUMULATED[name] + SAVE
    expected = run(source, tmp_path / "plain")
    made = converted(source)
    assert "global_batch=loader.batch_size * 2" in made
    assert differs(expected, run(made, tmp_path / "calm")) < 1e-6


DRAWN = """
def get_batch(split):
    chosen = torch.randint(len(x), (4,))
    return x[chosen], y[chosen]


best, iters, k = 1e9, 0, 2
a, b = get_batch("train")
while True:
    lr = 0.02 / (1 + iters)
    for group in opt.param_groups:
        group["lr"] = lr
    if iters % 5 == 0:
        with torch.no_grad():
            held = F.mse_loss(model(x), y).item()
        if held < best:
            best = held
    for micro in range(k):
        loss = F.mse_loss(model(a), b) / k
        a, b = get_batch("train")
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    iters += 1
    if iters > 9:
        break
n = iters
"""


def test_a_loop_that_draws_its_batches_trains_the_same_after_strikes(tmp_path):
    made = converted(HEAD + DRAWN + SAVE)
    assert 'train.drawn(lambda: get_batch("train"))' in made
    expected = run(made, tmp_path / "calm")
    assert expected["n"] == 10
    plain = run(HEAD + DRAWN + SAVE, tmp_path / "plain")
    assert plain["n"] == 10
    assert differs(expected, run_struck(made, tmp_path / "struck", 3, 7)) < 1e-6
