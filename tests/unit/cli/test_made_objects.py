"""Objects of the script that are made from its model or optimizer, and loops around the training: kept, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(16, 4)
y = 10 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
"""
STEP = """opt.zero_grad()
loss = F.mse_loss(model(a), b)
loss.backward()
opt.step()
"""
BATCHES = "for a, b in loader:\n" + "".join(f"    {line}\n" for line in STEP.splitlines())
AVERAGE = """class Average:
    def __init__(self, model):
        self.shadow = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(0.9).add_(p, alpha=0.1)
"""
STATE = """
    def state_dict(self):
        return self.shadow.state_dict()

    def load_state_dict(self, state):
        self.shadow.load_state_dict(state)
"""
BY_TURNS = """
    def begin(self, model):
        self.shadow = copy.deepcopy(model)
"""
MODULE = AVERAGE.replace("Average:", "Average(nn.Module):").replace("self.sh", "super().__init__()\n        self.sh", 1)
COUNTING = MODULE.replace("copy.deepcopy(model)", "copy.deepcopy(model)\n        self.n = 0").replace(
    "        for s", "        self.n += 1\n        for s"
)
WARMUP = """class Warmup:
    def __init__(self, optimizer):
        self.optimizer, self.n = optimizer, 0

    def step(self):
        self.n += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, self.n / 8)
"""
HISTORY = """class History:
    def __init__(self, model):
        self.model, self.all = model, []

    def collect(self):
        self.all.append(copy.deepcopy(self.model.state_dict()))

    def mean(self):
        return {k: sum(each[k] for each in self.all) / len(self.all) for k in self.all[0]}
"""
WRAPPER = """class Twice(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, a):
        return 2 * self.inner(a)
"""


def inside(text, indent=4):
    return "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in text.splitlines())


def script(of="", before="", turn="", after="", out="model.state_dict()", step=STEP):
    loop = "for epoch in range(3):\n    for a, b in loader:\n" + inside(f"{step}{turn}", 8) + inside(after)
    return f"{HEAD}\n\n{of}\n\n{before}\n{loop}torch.save({out}, 'model.pt')\n"


def refused(source):
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert error.value.do
    return error.value


RIGHT = {
    "an average with a state": script(
        AVERAGE + STATE, "ema = Average(model)", "ema.update(model)", out="ema.shadow.state_dict()"
    ),
    "an average that is kept by its module": script(
        AVERAGE, "ema = Average(model)", "ema.update(model)", out="ema.shadow.state_dict()"
    ),
    "an average that is a module": script(
        MODULE, "ema = Average(model)", "ema.update(model)", out="ema.shadow.state_dict()"
    ),
    "a module around the model": script(WRAPPER, "both = Twice(model)", step=STEP.replace("model(a)", "both(a)")),
    "a part of the model": script(before="last = model[2]", after="last.weight.data.mul_(0.9)"),
    "a function gives it back": script(
        "def same(m):\n    return m\n", "it = same(model)", after="it[0].weight.data.mul_(0.9)"
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_an_object_has_come_to_is_right_after_strikes(name, tmp_path):
    mended = converted(RIGHT[name])
    expected = run(RIGHT[name], tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0
    assert differs(expected, run_struck(mended, tmp_path / "struck", 2, 5, 9)) == 0.0


@pytest.mark.parametrize(
    ("of", "before", "turn", "after"),
    [
        (AVERAGE + BY_TURNS, "it = Average(model)", "it.update(model)", ""),
        (COUNTING, "it = Average(model)", "it.update(model)", ""),
        (WARMUP, "it = Warmup(opt)", "it.step()", ""),
        (HISTORY, "it = History(model)", "", "it.collect()\nmodel.load_state_dict(it.mean())"),
        (WARMUP + "\n\ndef made(o):\n    return Warmup(o)\n", "it = made(opt)", "it.step()", ""),
        (WARMUP, "it = [Warmup(opt)]", "it[0].step()", ""),
        ("from rates import Warmup", "it = Warmup(opt)", "it.step()", ""),
    ],
)
def test_an_object_made_from_the_model_is_not_the_model(of, before, turn, after):
    source = script(of, before, turn, after, out="(it, model)")
    error = refused(source)
    assert "`it` is" in error.why
    assert source.splitlines()[error.line - 1].strip() in (turn, after.partition("\n")[0])


@pytest.mark.parametrize("how", ["self.n += 1", "self.n = self.n + 1"])
def test_a_wrapper_that_goes_by_a_count_of_its_own_is_refused(how):
    counting = WRAPPER.replace("= model", "= model\n        self.n = 0").replace(
        "return 2", f"{how}\n        return self.n"
    )
    error = refused(script(counting, "both = Twice(model)", step=STEP.replace("model(a)", "both(a)")))
    assert "`both` is of class Twice" in error.why


@pytest.mark.parametrize(
    ("around", "body"),
    [
        ("for fold in range(2):", "for epoch in range(3):\n" + inside(BATCHES)),
        ("for epoch in range(3):", "for again in range(2):\n" + inside(BATCHES)),
        ("while epoch < 3:", BATCHES + "epoch += 1\n"),
        ("while epoch < 15:", BATCHES + "    epoch += 1\n"),
        ("while epoch < 3:", "for step in range(4):\n" + inside(STEP.replace("a)", "x)").replace("b)", "y)"))),
    ],
)
def test_a_training_in_another_loop_is_refused(around, body):
    source = f"{HEAD}epoch = 0\n{around}\n{inside(body)}torch.save(model.state_dict(), 'model.pt')\n"
    error = refused(source)
    assert "in another one" in error.why
    assert source.splitlines()[error.line - 1] == around
    within = f"{HEAD}\n\ndef main():\n    epoch = 0\n    {around}\n{inside(body, 8)}\n\nmain()\n"
    assert "in another one" in refused(within).why


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ("main()\nmain()\n", "more than once"),
        ("for seed in range(2):\n    main()\n", "again and again"),
        ("def all():\n    main()\n\nfor seed in range(2):\n    all()\n", "again and again"),
    ],
)
def test_a_training_that_is_called_again_is_refused(calls, why):
    main = "def main():\n    for epoch in range(3):\n" + inside(BATCHES, 8)
    assert "train.session(" in converted(f"{HEAD}\n\n{main}\n\nmain()\n")
    assert why in refused(f"{HEAD}\n\n{main}\n\n{calls}").why
