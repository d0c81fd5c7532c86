"""What a loop chooses by dice: Python's and numpy's are the same in all workers, torch's are refused."""

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


"""


def looped(*lines):
    turn = "".join(f"        {line}\n" for line in (*lines, "opt.zero_grad()", "loss.backward()", "opt.step()"))
    return f"{HEAD}for epoch in range(3):\n    for a, b in loader:\n{turn}torch.save(model.state_dict(), 'model.pt')\n"


CHOICE = ("    loss = F.mse_loss(model(a), b)", "else:", "    loss = F.l1_loss(model(a), b)")
ALIKE = {
    "Python's": looped("if random.random() < 0.5:", *CHOICE),
    "numpy's": looped("if np.random.rand() < 0.5:", *CHOICE),
    "a factor": looped("lam = np.random.beta(1.0, 1.0)", "loss = lam * F.mse_loss(model(a), b)"),
    "noise, one for each sample": looped("loss = F.mse_loss(model(a + 0.1 * torch.randn_like(a)), b)"),
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
    assert all(said_of(source) == [] for source in ALIKE.values())
