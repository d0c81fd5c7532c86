"""Dice in a loop: torch's are each worker's own, for samples; Python's and numpy's are those of all, for choices."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.advice import inspect  # noqa: E402
from sublet.cli.work.script.facts import look_at  # noqa: E402
from sublet.cli.work.script.reading import Script  # noqa: E402
from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)
x = torch.rand(16, 4)
y = 10 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def coin(p):
    return torch.rand(1).item() < p


def mask(n):
    return (torch.rand(n) < 0.5).float()


def blurred(rows, how=0.1):
    return rows + how * torch.randn(rows.size(0), 1)


def shifted(row):
    return row + random.random()


class Net(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(4, 4), nn.Linear(4, 1), drop

    def forward(self, rows):
        h = F.dropout(torch.tanh(self.one(rows)), 0.2, self.training)
        return self.two(h * self.kept(h))

    def kept(self, h):
        return torch.bernoulli(torch.full((len(h), 1), 0.9)) if self.drop else 1.0


maker = nn.Linear(2, 4)
"""


def looped(*lines, before=""):
    turn = "".join(f"        {line}\n" for line in (*lines, "opt.zero_grad()", "loss.backward()", "opt.step()"))
    loop = f"for epoch in range(3):\n    for a, b in loader:\n{turn}"
    return f"{HEAD}{before}\n{loop}torch.save(model.state_dict(), 'model.pt')\n"


TURNED = """
def turned(rows):
    if rows.mean() > 0.5:
        return rows
    return rows * random.random()


"""
CUT = """
class Cut:
    def __call__(self, rows):
        k = torch.randint(0, 4, (1,))
        return rows.roll(int(k), 1)


cut = Cut()
"""
LOSS = "loss = F.mse_loss(model(a), b)"
CHOICE = ("    loss = F.mse_loss(model(a), b)", "else:", "    loss = F.l1_loss(model(a), b)")
ALIKE = {
    "Python's": looped("if random.random() < 0.5:", *CHOICE),
    "numpy's": looped("if np.random.rand() < 0.5:", *CHOICE),
    "a factor": looped("lam = np.random.beta(1.0, 1.0)", "loss = lam * F.mse_loss(model(a), b)"),
    "noise, one for each sample": looped("loss = F.mse_loss(model(a + 0.1 * torch.randn_like(a)), b)"),
    "numbers of samples": looped("n = len(a)", "loss = F.mse_loss(model(a + 0.1 * torch.randn(n, 4)), b)"),
    "rows, and no columns": looped("n, m = a.shape", "loss = F.mse_loss(model(a * torch.rand(n, 1)), b)"),
    "in a function": looped("loss = F.mse_loss(model(blurred(a)), b)"),
    "one for each sample, in a loop": looped(
        "a = a.clone()", "for j in range(len(a)):", "    if torch.rand(1) < 0.3:", "        a[j] = 0.0", LOSS
    ),
    "for each, in a comprehension": looped("a = torch.stack([row * torch.rand(1) for row in a])", LOSS),
    "in place": looped("loss = F.mse_loss(model(a + torch.empty_like(a).uniform_(0.0, 0.1)), b)"),
    "of a distribution of what a model says": looped(
        "said = torch.distributions.Normal(model(a), 0.1)", "loss = F.mse_loss(said.rsample(), b)"
    ),
    "a distribution that is asked for as many": looped(
        "d = torch.distributions.Uniform(0.0, 0.1)", "loss = F.mse_loss(model(a + d.sample((len(a), 1))), b)"
    ),
    "a forward that drops some": looped(
        LOSS, before="model = Net(True)\nopt = torch.optim.SGD(model.parameters(), lr=0.01)"
    ),
    "in a lambda": looped("a = noisy(a)", LOSS, before="noisy = lambda rows: rows + 0.1 * torch.randn_like(rows)"),
    "of a function that is left by its argument": looped(
        "a = turned(a)", LOSS, before=TURNED.replace("rows.mean() > 0.5", "p == 0.0").replace("(rows)", "(rows, p=0.5)")
    ),
    "of a function that is left after the draw": looped(
        "a = turned(a)",
        LOSS,
        before=TURNED.replace("    if rows", "    factor = random.random()\n    if rows").replace(
            "rows * random.random()", "rows * factor"
        ),
    ),
    "samples that are made up": looped(
        "noise = torch.randn(4, 2)", "loss = F.mse_loss(model(a), b) + model(maker(noise).detach()).mean()"
    ),
    "columns by numpy's": looped("a = a[:, np.random.permutation(4)]", LOSS),
    "a crop by the width": looped("k = random.randint(0, a.shape[1] - 1)", "loss = F.mse_loss(model(a.roll(k, 1)), b)"),
    "dice for each layer": looped("for p in model.parameters():", "    random.random()", LOSS),
    "a die that is only printed": looped(
        "if torch.rand(1) < 0.5:", "    print('!')", "print(torch.rand(1))", "loss = F.mse_loss(model(a), b)"
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_it_is_converted_and_comes_to_the_same_to_the_bit(name, tmp_path):
    mended = converted(ALIKE[name])
    expected = run(ALIKE[name], tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 9)) == 0.0


OWN = {
    "lam = torch.distributions.Beta(0.4, 0.4).sample()": looped(
        "lam = torch.distributions.Beta(0.4, 0.4).sample()", "loss = lam * F.mse_loss(model(a), b)"
    ),
    "if torch.distributions.Bernoulli(0.5).sample():": looped(
        "if torch.distributions.Bernoulli(0.5).sample():", "    a = -a", LOSS
    ),
    "a = a * torch.empty(1).uniform_(0.8, 1.2)": looped("a = a * torch.empty(1).uniform_(0.8, 1.2)", LOSS),
    "a = a * a.new_empty(1).normal_()": looped("a = a * a.new_empty(1).normal_()", LOSS),
    "a = a * torch.normal(0.0, 1.0, (1,))": looped("a = a * torch.normal(0.0, 1.0, (1,))", LOSS),
    "a = a + torch.randn_like(b[:1])": looped("a = a + torch.randn_like(b[:1])", LOSS),
    "a = a + torch.randn_like(a[0])": looped("a = a + torch.randn_like(a[0])", LOSS),
    "k = int(torch.randint(4, size=()))": looped(
        "k = int(torch.randint(4, size=()))", "loss = F.mse_loss(model(a.roll(k, 1)), b)"
    ),
    "k = torch.randint(len(a), (1,))": looped("k = torch.randint(len(a), (1,))", LOSS),
    "a = a[:, torch.randperm(4)]": looped("a = a[:, torch.randperm(4)]", LOSS),
    "c = torch.multinomial(torch.ones(4), 2)": looped(
        "c = torch.multinomial(torch.ones(4), 2)", "loss = F.mse_loss(model(a[:, c].repeat(1, 2)), b)"
    ),
    "c = torch.ones(4).multinomial(1)": looped("c = torch.ones(4).multinomial(1)", LOSS),
    "a = a * torch.bernoulli(torch.full((4,), 0.5))": looped("a = a * torch.bernoulli(torch.full((4,), 0.5))", LOSS),
    "a = a * (torch.rand(a.shape[1]) < 0.5)": looped("a = a * (torch.rand(a.shape[1]) < 0.5)", LOSS),
    "a = a * (torch.rand(a.size(-1)) < 0.5)": looped("a = a * (torch.rand(a.size(-1)) < 0.5)", LOSS),
    "a = a * (torch.rand(m, device=a.device) < 0.5)": looped(
        "n, m = a.shape", "a = a * (torch.rand(m, device=a.device) < 0.5)", LOSS
    ),
    "noisy = lambda rows: rows * torch.rand(1)": looped(
        "a = noisy(a)", LOSS, before="noisy = lambda rows: rows * torch.rand(1)"
    ),
    "k = torch.randint(0, 4, (1,))": looped("a = cut(a)", LOSS, before=CUT),
    "a = aug(a)": looped("a = aug(a)", LOSS).replace(
        "\nfor epoch",
        "\nfrom torchvision import transforms\naug = nn.Sequential(transforms.RandomHorizontalFlip())\nfor epoch",
    ),
    "return (torch.rand(n) < 0.5).float()": looped("a = a * mask(4)", LOSS),
    "loss = F.mse_loss(model(a + torch.rand(4)), b)": looped("loss = F.mse_loss(model(a + torch.rand(4)), b)"),
    "if torch.rand(1) < 0.5:": looped("if torch.rand(1) < 0.5:", *CHOICE),
    "p = torch.rand(1).item()": looped("p = torch.rand(1).item()", "if p < 0.5:", *CHOICE),
    "return torch.rand(1).item() < p": looped("if coin(0.5):", *CHOICE),
    "lam = torch.rand(1)": looped("lam = torch.rand(1)", "loss = (lam * F.mse_loss(model(a), b)).sum()"),
    "n = torch.randint(1, 3, (1,)).item()": looped(
        "n = torch.randint(1, 3, (1,)).item()", "loss = F.mse_loss(model(a * n), b)"
    ),
    "loss = F.mse_loss(model(a), b) if torch.rand(3).mean() < 0.5 else F.l1_loss(model(a), b)": looped(
        "loss = F.mse_loss(model(a), b) if torch.rand(3).mean() < 0.5 else F.l1_loss(model(a), b)"
    ),
}


def said_of(source):
    read = Script(Path("train.py"), source)
    return [each.line for each in inspect(read, look_at(read)).findings if "torch's dice" in each.what]


@pytest.mark.parametrize("line", OWN)
def test_a_choice_by_a_die_of_torch_is_refused_and_inspect_says_so(line):
    with pytest.raises(CannotConvert, match="torch's dice are each worker's own") as error:
        converted(OWN[line])
    assert OWN[line].splitlines()[error.value.line - 1].strip() == line
    assert "random.random()" in error.value.do
    assert error.value.line in said_of(OWN[line])


def test_of_other_dice_inspect_says_nothing():
    assert {name: said_of(source) for name, source in ALIKE.items()} == {name: [] for name in ALIKE}


SAMPLES = {
    "if random.random() < 0.3:": looped(
        "a = a.clone()", "for j in range(len(a)):", "    if random.random() < 0.3:", "        a[j] = 0.0", LOSS
    ),
    "a = a + torch.from_numpy(np.random.randn(*a.shape)).float()": looped(
        "a = a + torch.from_numpy(np.random.randn(*a.shape)).float()", LOSS
    ),
    "a = torch.stack([row * random.random() for row in a])": looped(
        "a = torch.stack([row * random.random() for row in a])", LOSS
    ),
    "return row + random.random()": looped("a = torch.stack([shifted(row) for row in a])", LOSS),
    "w = np.random.beta(1.0, 1.0, size=n)": looped("n = a.size(0)", "w = np.random.beta(1.0, 1.0, size=n)", LOSS),
    "k = random.randrange(rows)": looped("rows, columns = a.size()", "k = random.randrange(rows)", LOSS),
    "return rows * random.random()": looped("a = turned(a)", LOSS, before=TURNED),
    "random.random()": looped("if b.max() > 30:", "    random.random()", LOSS),
    "if len(a) > 3 and random.random() < 0.5:": looped("if len(a) > 3 and random.random() < 0.5:", "    a = -a", LOSS),
    "w = dice.random(len(a))": looped("w = dice.random(len(a))", LOSS, before="dice = np.random.default_rng(1)"),
}


@pytest.mark.parametrize("line", SAMPLES)
def test_dice_of_all_that_are_thrown_for_each_sample_are_refused_and_inspect_says_so(line):
    read = Script(Path("train.py"), SAMPLES[line])
    found = inspect(read, look_at(read))
    said = [each for each in found.findings if "drawn for each sample" in each.what]
    assert [read.lines[each.line - 1].strip() for each in said] == [line]
    assert "torch.rand(len(x))" in said[0].do
    assert found.by_hand is not None
    if "dice." not in line:  # that one draws before the step, too
        assert (found.by_hand.what, found.by_hand.line) == (said[0].what, said[0].line)


def test_an_order_of_the_samples_is_refused():
    line = "order = torch.randperm(a.size(0))"
    source = looped(line, "a = 0.7 * a + 0.3 * a[order]", "b = 0.7 * b + 0.3 * b[order]", LOSS)
    with pytest.raises(CannotConvert, match="goes by the others of its batch") as error:
        converted(source)
    assert source.splitlines()[error.value.line - 1].strip() == line


NOISE = "with torch.no_grad():\n    for p in model.parameters():\n        p.add_(0.01 * torch.randn_like(p))\n"
LASTING = {  # between two epochs, at which all workers are to be the same
    "noise on weights": ("", NOISE),
    "by a name": (
        "",
        NOISE.replace("p.add_(0.01 * torch.randn_like(p))", "n = torch.randn_like(p)\n        p.add_(n)"),
    ),
    "in a function": ("def shake():\n" + "".join(f"    {line}\n" for line in NOISE.splitlines()), "shake()\n"),
    "what is kept": ("lam = 0.5", "lam = torch.rand(1).item()\n"),
}


def between(before, after):
    loss = "loss = lam * F.mse_loss(model(a), b)" if "lam" in before else LOSS
    lines = "".join(f"    {line}\n" for line in after.splitlines())
    return looped(loss, before=before).replace("torch.save(", f"{lines}torch.save(")


@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_is_not_changed_by_dice_of_each_workers_own(name, tmp_path):
    before, after = LASTING[name]
    with pytest.raises(CannotConvert, match=r"what lasts .* would be another in each"):
        converted(between(before, after))
    alike = [
        text.replace("torch.randn_like(p)", "torch.from_numpy(np.random.randn(*p.shape)).to(p)")
        for text in LASTING[name]
    ]
    source = between(*(text.replace("torch.rand(1).item()", "np.random.rand()") for text in alike))
    mended = converted(source)
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 7)) == 0.0


def test_what_is_only_looked_at_between_epochs_may_be_drawn_by_torch():
    assert "train.session(" in converted(between("", "sample = model(torch.randn(2, 4))\nprint(sample)\n"))
