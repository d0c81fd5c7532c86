"""What is told of a script that is refused: the reason is the one, and what is advised is converted, to the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import csv
import math
import os
import random
import subprocess
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(16, 4)
y = 3 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def trained(part, flag=True):
    for p in part.parameters():
        p.requires_grad = flag


"""
LOSS = "loss = F.mse_loss(model(a), b)"
STEP = f"opt.zero_grad()\n{LOSS}\nloss.backward()\nopt.step()"
UPDATE = "opt.zero_grad()\nloss.backward()\nopt.step()"


def deep(text, by):
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def script(turn=STEP, before="", first="", after=""):
    loop = f"for epoch in range(4):\n{deep(first, 4)}    for a, b in loader:\n{deep(turn, 8)}{deep(after, 4)}"
    return f"{HEAD}{before}\n{loop}torch.save(model.state_dict(), 'model.pt')\n"


FROZEN = "model[0].requires_grad_(False)"
HELPED = script(before=FROZEN, after="if epoch == 1:\n    trained(model[0])")
SCALED = f"opt.zero_grad()\n{LOSS}\nscaler.scale(loss).backward()\nscaler.step(opt)\nscaler.update()"
TRAINER = """
class Trainer:
    def __init__(self, net, optimizer, batches):
        self.net = net
        self.optimizer = optimizer
        self.batches = batches
        self.n = 0

    def step(self, a, b):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(a), b)
        loss.backward()
        self.optimizer.step()
        {in_step}
        return loss.item()

    def fit(self, epochs):
        for epoch in range(epochs):
            for a, b in self.batches:
                loss = self.step(a, b)
                {in_fit}


Trainer(model, opt, loader).fit(4)
torch.save(model.state_dict(), "model.pt")
"""
ROW = "with open('log.csv', 'a') as f:\n    f.write('epoch\\n')"
DICE = "dice = np.random.default_rng(3)"
COUNTED = f"{STEP}\nn += 1\nif n == 10:\n    {{}}break"
LEFT = script(turn=COUNTED.format(""), before="n = 0")
CASES = {  # the text; why, at which line, and words of the advice; the text as advised; whether it comes to the same
    "unfrozen by a helper after the batches": (
        HELPED,
        "parameters are unfrozen amid training",
        "trained(model[0])",
        "by .detach()",
        script(
            turn=STEP.replace("model(a)", "model[2](model[1](model[0](a) if epoch > 1 else model[0](a).detach()))")
        ),
        True,
    ),
    "unfrozen before the batches, with a rate instead": (
        script(before=FROZEN, first="model[0].requires_grad_(epoch >= 2)"),
        "parameters are unfrozen amid training",
        "model[0].requires_grad_(epoch >= 2)",
        "with lr=0 for them, whose rate is raised later",
        script(
            before="opt = torch.optim.SGD([{'params': model[2].parameters()}, "
            "{'params': model[0].parameters(), 'lr': 0.0}], lr=0.05)",
            after="if epoch == 1:\n    opt.param_groups[1]['lr'] = 0.05",
        ),
        False,
    ),
    "a step where a loss is finite": (
        script(turn=f"{LOSS}\nif torch.isfinite(loss):\n{deep(UPDATE, 4)}"),
        "`opt.step()` is made by `torch.isfinite(loss)`",
        "if torch.isfinite(loss):",
        "with a torch.amp.GradScaler",
        script(turn=SCALED, before="scaler = torch.amp.GradScaler('cpu', init_scale=1.0, growth_interval=1000)"),
        True,
    ),
    "two ways of one update": (
        script(
            turn=f"{LOSS}\nopt.zero_grad()\nif scaler is not None:\n    scaler.scale(loss).backward()\n"
            "    scaler.step(opt)\n    scaler.update()\nelse:\n    loss.backward()\n    opt.step()",
            before="scaler = None",
        ),
        "the update is made in two ways, by `scaler is not None`",
        "if scaler is not None:",
        "torch.amp.GradScaler(enabled=...)",
        script(turn=SCALED, before="scaler = torch.amp.GradScaler('cpu', enabled=False)"),
        True,
    ),
    "a generator of its own": (
        script(turn=f"if dice.random() < 0.5:\n    a = -a\n{STEP}", before=DICE),
        "`dice` draws before the step is made",
        "if dice.random() < 0.5:",
        "draw for the next turn after s.step()",
        script(
            turn=f"if flip:\n    a = -a\n{STEP}\nflip = dice.random() < 0.5",
            before=f"{DICE}\nflip = dice.random() < 0.5",
        ),
        True,
    ),
    "Python's dice in its place": (
        script(turn=f"if dice.random() < 0.5:\n    a = -a\n{STEP}", before="dice = random.Random(3)"),
        "`dice` draws before the step is made",
        "if dice.random() < 0.5:",
        "random.random()",
        script(turn=f"if random.random() < 0.5:\n    a = -a\n{STEP}", before="random.seed(3)"),
        True,
    ),
    "an else of the loop": (
        LEFT.replace("torch.save(", "    else:\n        print('whole')\ntorch.save("),
        "the loop has an `else`",
        "for a, b in loader:",
        "under `if whole:`",
        script(
            turn=COUNTED.format("whole = False\n    "), before="n = 0", first="whole = True",
            after="if whole:\n    print('whole')",
        ),
        True,
    ),
    "a count in the method of a step": (
        HEAD + TRAINER.format(in_step="self.n += 1", in_fit="pass"),
        "`self.n` is made anew in step(), which makes a step",
        "self.n += 1",
        "in fit(), after step() in line",
        HEAD + TRAINER.format(in_step="pass", in_fit="self.n += 1"),
        True,
    ),
    "a row before the loop": (
        script(before=ROW, after=ROW.replace("'epoch\\n'", "f'{epoch}\\n'")),
        "it is before the loop, and each start would write it",
        "with open('log.csv', 'a') as f:",
        "`if epoch == 0:` after the batches",
        script(after=f"if epoch == 0:\n{deep(ROW, 4)}" + ROW.replace("'epoch\\n'", "f'{epoch}\\n'")),
        True,
    ),
    "dice for each sample": (
        script(turn=f"a = a * torch.tensor(np.random.rand(len(a), 1)).float()\n{STEP}"),
        "this is drawn for each sample",
        "a = a * torch.tensor(np.random.rand(len(a), 1)).float()",
        "torch.rand(len(x))",
        script(turn=f"a = a * torch.rand(len(a), 1)\n{STEP}"),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_for_what_it_does_and_comes_to_the_same_as_advised(name, tmp_path):
    source, why, line, do, advised, same = CASES[name]
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert why in error.value.why
    assert source.splitlines()[error.value.line - 1].strip() == line
    assert do in error.value.do
    mended = converted(advised)
    expected = run(source if same else advised, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 9)) == 0.0, mended
    for log in (tmp_path / "plain").glob("*.csv"):
        assert {log.read_text()} == {(tmp_path / which / log.name).read_text() for which in ("calm", "struck")}


TOGGLED = "if epoch == 1:\n    model[0].requires_grad_(False)\nif epoch == 2:\n    model[0].requires_grad_(True)"
PARTS = "for p in model[0].parameters():\n    p.requires_grad = epoch % 2 == 0"
TYPED = """
def step(a: torch.Tensor, b: torch.Tensor) -> float:
    opt.zero_grad()
    loss = F.mse_loss(model(a), b)
    loss.backward()
    opt.step()
    return loss.item()


"""
HELPER = """
def note(path, row):
    new = not os.path.exists(path)
    with open(path, "a") as f:
        rows = csv.DictWriter(f, fieldnames=list(row))
        if new:
            rows.writeheader()
        rows.writerow(row)


"""
CONVERTED = {
    "frozen and thawed again": script(first=TOGGLED),
    "by turns, one by one": script(first=PARTS),
    "after the batches": script(after=TOGGLED),
    "a critic, frozen while the other is trained": script(
        before="maker, critic = nn.Linear(4, 4), nn.Linear(4, 1)\n"
        "other = torch.optim.SGD(critic.parameters(), lr=0.1)\n"
        "opt = torch.optim.SGD(maker.parameters(), lr=0.05)",
        turn="for p in critic.parameters():\n    p.requires_grad = True\nother.zero_grad()\n"
        "loss = critic(maker(a).detach()).mean() - critic(a).mean()\nloss.backward()\nother.step()\n"
        "critic.requires_grad_(False)\nopt.zero_grad()\nloss = -critic(maker(a)).mean()\nloss.backward()\nopt.step()",
    ).replace("save(model.state_dict()", "save(maker.state_dict()"),
    "a log of starts": script(
        before="def say(words):\n    print(words)\n    with open('a.log', 'a') as f:\n        f.write(words)\n\n\n"
        "say('begins')"
    ),
    "a name with a type": script(before=TYPED, turn="loss: float = step(a, b)\nprint(loss)"),
    "rows of a helper that is called twice": script(
        before=HELPER, turn=f"{STEP}\nnote('steps.csv', {{'n': len(a)}})", after="note('epochs.csv', {'epoch': epoch})"
    ),
    "rows of commands": script(
        after="os.system(f'echo {epoch} >> a.csv')\nsubprocess.run(['sh', '-c', f'echo {epoch} >> b.csv'])"
    ),
    "a row that is asked for before": script(
        before="if not os.path.exists('log.csv'):\n    with open('log.csv', 'a') as f:\n        f.write('epoch\\n')"
    ),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_it_is_converted_and_comes_to_the_same_to_the_bit(name, tmp_path):
    mended = converted(CONVERTED[name])
    expected = run(CONVERTED[name], tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 9)) == 0.0, mended
    for log in (tmp_path / "plain").glob("*.csv"):
        assert {log.read_text()} == {(tmp_path / which / log.name).read_text() for which in ("calm", "struck")}


def test_rows_of_commands_are_left_to_one_worker():
    mended = converted(CONVERTED["rows of commands"])
    assert mended.count("if s.rank == 0:\n") == 2


REFUSED = {
    "what a command says is used": (
        script(after="code = os.system(f'echo {epoch} >> a.csv')\nprint(code)"),
        "what comes of it is used",
        "code = os.system(f'echo {epoch} >> a.csv')",
    ),
    "a step that two loops call": (
        script(before=f"{TYPED}for a, b in loader:\n    step(a, b)", turn="step(a, b)"),
        "step() makes a step, and is called in more than one place",
        "step(a, b)",
    ),
    "a rate by samples of a worker": (
        script(
            before="seen = 0",
            turn=f"for g in opt.param_groups:\n    g['lr'] = 0.05 * 0.999 ** seen\n{STEP}\nseen += len(a)",
        ),
        "`seen` comes from a worker's own part of the batch",
        "g['lr'] = 0.05 * 0.999 ** seen",
    ),
    "a part that was made frozen": (
        script(
            before="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 1)\n        self.one.requires_grad_(False)\n\n"
            "    def forward(self, rows):\n        return self.two(self.one(rows))\n\n    def thaw(self):\n"
            "        self.one.requires_grad_()\n\n\nmodel = Net()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)",
            after="if epoch == 1:\n    model.thaw()",
        ),
        "parameters are unfrozen amid training",
        "model.thaw()",
    ),
    "a part that was made frozen, and is thawed and frozen": (
        script(
            before="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 1)\n        self.one.requires_grad_(False)\n\n"
            "    def forward(self, rows):\n        return self.two(self.one(rows))\n\n\n"
            "model = Net()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)",
            after="model.one.requires_grad_(True)\nif epoch == 2:\n    model.one.requires_grad_(False)",
        ),
        "parameters are unfrozen amid training",
        "model.one.requires_grad_(True)",
    ),
    "a parameter of its own": (
        script(
            before="more = nn.Parameter(torch.zeros(1), requires_grad=False)",
            turn=STEP.replace("model(a)", "model(a) + more"),
            after="more.requires_grad_(True)",
        ),
        "parameters are unfrozen amid training",
        "more.requires_grad_(True)",
    ),
    "frozen by what the samples are": (
        script(turn=f"model[0].requires_grad_(b.mean() > 5)\n{STEP}"),
        "`model` is remembered from step to step",
        "model[0].requires_grad_(b.mean() > 5)",
    ),
    "frozen by what a turn has left": (
        script(before="last = 0.0", first="model[0].requires_grad_(last < 1)", turn=f"{STEP}\nlast = 0.5 * epoch"),
        "`model` changes before the batches of an epoch",
        "model[0].requires_grad_(last < 1)",
    ),
    "a step within two conditions": (
        script(
            turn=f"{LOSS}\nopt.zero_grad()\nloss.backward()\nopt.step()\nif epoch > 0:\n    other.zero_grad()\n"
            "    head(a).mean().backward()\n    if epoch > 1:\n        other.step()",
            before="head = nn.Linear(4, 1)\nother = torch.optim.SGD(head.parameters(), lr=0.1)",
        ),
        "`other.step()` is in some turns only, with a loss of its own",
        "other.step()",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_for_what_it_does(name):
    source, why, line = REFUSED[name]
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert why in error.value.why
    assert source.splitlines()[error.value.line - 1].strip() == line
