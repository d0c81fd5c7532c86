"""A step that is made in a function, or a method, which is called for each batch: converted to the same, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(18, 4)
y = 3 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
"""
STEP = """

def train_step(net, batch, optimizer, clip=0.5):
    net.train()
    a, b = batch
    optimizer.zero_grad()
    loss = F.mse_loss(net(a), b)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
    return loss.item()


"""
SAVE = 'torch.save(model.state_dict(), "model.pt")\n'
TRAINER = """

class Trainer:
    def __init__(self, net, optimizer, batches, save_every):
        self.net = net
        self.optimizer = optimizer
        self.batches = batches
        self.save_every = save_every

    def _run_batch(self, a, b):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(a), b)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        for a, b in self.batches:
            self._run_batch(a, b)

    def _save(self, epoch):
        torch.save(self.net.state_dict(), "model.pt")

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            if epoch % self.save_every == 0:
                self._save(epoch)


trainer = Trainer(model, opt, loader, 1)
trainer.train(3)
"""


def same(source: str, folder) -> str:
    mended = converted(source)
    expected = run(source, folder / "plain")
    assert differs(expected, run(mended, folder / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, folder / "struck", 2, 7)) == 0.0, mended
    return mended


@pytest.mark.parametrize(
    "line",
    [
        "train_step(model, batch, opt)",
        "loss = train_step(model, batch, opt)",
        "total += train_step(model, batch, optimizer=opt)",
        "total = 0.5 * total + train_step(model, batch, opt) / 2",
        "print(train_step(model, batch, opt, clip=0.5))",
    ],
)
def test_a_step_in_a_function_is_converted_however_its_result_is_used(line, tmp_path):
    loop = f"for epoch in range(3):\n    total = 0.0\n    for batch in loader:\n        {line}\n"
    mended = same(f"{HEAD}{STEP}{loop}{SAVE}", tmp_path)
    assert "clip_norm=0.5" in mended
    assert line.replace(")", ", s=s)", 1) in mended  # as it was, with one more argument


def test_a_result_that_is_kept_gets_a_name_where_its_line_is_under_a_condition(tmp_path):
    loop = "trace = []\nfor epoch in range(3):\n    for b in loader:\n        trace.append(train_step(model, b, opt))"
    mended = same(f"{HEAD}{STEP}{loop}\n{SAVE}", tmp_path)
    assert "value = train_step(model, b, opt, s=s)\n        if s.updated:\n" in mended


def test_a_step_in_a_function_of_an_epoch_in_a_function(tmp_path):
    epoch = "def one_epoch(net, batches):\n    for batch in batches:\n        train_step(net, batch, opt)\n\n\n"
    mended = same(f"{HEAD}{STEP}{epoch}for epoch in range(3):\n    one_epoch(model, loader)\n{SAVE}", tmp_path)
    assert "train_step(net, batch, opt, s=s)" in mended
    assert "one_epoch(model, loader, s)" in mended


def test_a_trainer_whose_step_is_a_method_as_in_the_tutorials(tmp_path):
    mended = same(f"{HEAD}{TRAINER}", tmp_path)
    assert "self._run_batch(a, b, s)" in mended
    assert "if s.rank == 0:\n                        self._save(epoch)" in mended


@pytest.mark.parametrize("told", ["factor", "(factor, 2.0)[0]", "factor * 2"])
@pytest.mark.parametrize("name", ["factor", "w"])
def test_what_a_function_is_given_is_what_is_kept_by_then(told, name, tmp_path):
    """The argument was of before the loop, in every call."""
    function = (
        f"\n\ndef one_epoch({name}):\n    for a, b in loader:\n        opt.zero_grad()\n"
        f"        loss = F.mse_loss(model(a), b) * {name}\n        loss.backward()\n        opt.step()\n\n\n"
    )
    loop = f"factor = 1.0\nfor epoch in range(3):\n    one_epoch({told})\n    factor = factor * 0.5\n"
    mended = same(f"{HEAD}{function}{loop}{SAVE}", tmp_path)
    assert "kept.factor" in mended


def test_a_full_batch_step_in_a_function_keeps_its_loop(tmp_path):
    step = STEP.replace("a, b = batch", "a, b = x, y").replace("batch, ", "")
    source = f"{HEAD}{step}for number in range(6):\n    train_step(model, opt)\n{SAVE}"
    mended = same(source, tmp_path)
    assert "ck.tick(number + 1)" in mended
    assert "def train_step(net, optimizer, clip=0.5):" in mended


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        ("for b in loader:\n        n = train_step(model, b, opt) if epoch else 0", "amid an expression"),
        ("for b in loader:\n        n = [train_step(model, b, opt) for _ in range(2)]", "amid an expression"),
        ("for b in loader:\n        print(model[0].bias, train_step(model, b, opt))", "amid an expression"),
        ("for b in loader:\n        n = len(rows) * train_step(model, b, opt)", "amid an expression"),
    ],
)
def test_a_step_that_is_made_sometimes_is_refused_with_the_reason(loop, why):
    with pytest.raises(CannotConvert, match=why):
        converted(f"{HEAD}{STEP}for epoch in range(3):\n    {loop}\n{SAVE}")


def test_arithmetic_in_place_with_an_argument_does_not_change_it(tmp_path):
    """`style *= args.weight` was taken for a line after which `style` may be a part of `args`."""
    text = (
        "import argparse\n" + HEAD + "\n\ndef train(args):\n    for epoch in range(3):\n        for a, b in loader:\n"
        "            style = 0.0\n            for each in (a, b):\n                style += each.mean()\n"
        "            style *= args.weight\n            loss = F.mse_loss(model(a), b) + style * 0\n"
        "            opt.zero_grad()\n            loss.backward()\n            opt.step()\n\n\n"
        'parser = argparse.ArgumentParser()\nparser.add_argument("--weight", type=float, default=0.1)\n'
        "train(parser.parse_args([]))\n"
    )
    same(text + SAVE, tmp_path)


def test_a_batch_that_is_looked_at_before_an_epoch_is_the_reason_that_is_told():
    looked = (
        "for epoch in range(3):\n    size = len(next(iter(loader))[0])\n"
        "    for batch in loader:\n        train_step(model, batch, opt)\n"
    )
    with pytest.raises(CannotConvert, match="random numbers are drawn"):
        converted(f"{HEAD}{STEP}{looked}{SAVE}")


def test_a_loop_without_an_end_is_the_reason_that_is_told():
    """Episodes: `for episode in count(1)` in main() was called one epoch."""
    source = HEAD.replace("import torch\n", "from itertools import count\nimport torch\n", 1) + STEP
    source += "def main():\n    for episode in count(1):\n        train_step(model, (x, y), opt)\n\n\nmain()\n"
    with pytest.raises(CannotConvert, match=r"`count\(1\)` does not say how many turns"):
        converted(source)


def test_what_a_step_returns_is_kept_by_the_name_that_it_is_given(tmp_path):
    """`n = step(x, y, n)` ended in a SyntaxError."""
    step = STEP.replace("optimizer, clip=0.5", "optimizer, n, clip=0.5").replace(
        "net(a), b)", "net(a), b) * (1 + n / 9)"
    )
    step = step.replace("return loss.item()", "return n + 1")
    loop = "n = 0\nfor epoch in range(3):\n    for b in loader:\n        n = train_step(model, b, opt, n)\n"
    save = 'torch.save({**model.state_dict(), "n": n}, "model.pt")\n'
    mended = same(f"{HEAD}{step}{loop}{save}", tmp_path)
    assert "        if s.updated:\n            kept.n = value\n" in mended
    two = loop.replace("n = train_step", "clip, n = train_step")
    with pytest.raises(CannotConvert, match="some of what train_step"):
        converted(f"{HEAD}{step.replace('return n + 1', 'return clip, n + 1')}{two}{save}")


@pytest.mark.parametrize(
    ("taken", "free"), [((), "value"), (("value",), "result"), (("value", "result"), "returned_by_train_step")]
)
def test_what_a_step_returns_and_is_kept_gets_a_name_that_is_free(taken, free, tmp_path):
    step = STEP.replace("optimizer, clip=0.5", "optimizer, n").replace("clip)", "0.5)").replace("loss.item()", "n + 1")
    given = "".join(f"{name} = 0.5\n" for name in taken)
    scaled = " * ".join(("x", *taken))
    loop = f"for epoch in range(3):\n    for x, y in loader:\n        n = train_step(model, ({scaled}, y), opt, n)\n"
    source = f"{HEAD}{step}{given}n = 0\n{loop}    if n > 6:\n        opt.param_groups[0]['lr'] = 0.01\n{SAVE}"
    mended = converted(source)
    assert f"        {free} = train_step(" in mended
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 8)) == 0.0, mended
