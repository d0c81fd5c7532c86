"""A loop in a function that is called for each epoch, and bars with names: converted to the same, or refused."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import argparse
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
x = torch.rand(16, 4)
y = 3 * x.sum(1, keepdim=True)
"""
MNIST = (
    HEAD
    + '''

def train(args, model, device, train_loader, optimizer, epoch):
    """One epoch.

    Nothing is returned.
    """
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.mse_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print("{} [{}/{}] {:.6f}".format(
                epoch, batch_idx * len(data), len(train_loader.dataset), loss.item()))


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.mse_loss(output, target, reduction="sum").item()
    print(test_loss / len(test_loader.dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--log-interval", type=int, default=2)
    args = parser.parse_args([])
    device = torch.device("cpu")
    kwargs = {"batch_size": 4}
    train_loader = DataLoader(TensorDataset(x, y), **kwargs, generator=torch.Generator())
    test_loader = DataLoader(TensorDataset(x, y), batch_size=8, generator=torch.Generator())
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
'''
)
BEST = (
    HEAD
    + """net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
held_out = DataLoader(TensorDataset(x, y), batch_size=8, generator=torch.Generator())


def one_epoch(model, batches, optimizer, criterion, scale):
    model.train()
    total = 0.0
    bar = tqdm(batches, disable=True)
    for a, b in bar:
        optimizer.zero_grad()
        loss = scale * criterion(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()
        bar.set_postfix(loss=loss.item())
    return total / len(batches)


@torch.no_grad()
def evaluate(model, batches, criterion):
    model.eval()
    total = 0.0
    for a, b in batches:
        total += criterion(model(a), b).item()
    return total


best = float("inf")
for epoch in range(3):
    loss = one_epoch(net, loader, opt, nn.MSELoss(), 0.5 ** epoch)
    value = evaluate(net, held_out, nn.MSELoss())
    print(epoch, loss, value)
    if value < best:
        best = value
        torch.save(net.state_dict(), "best.pt")
torch.save({**net.state_dict(), "best": best}, "model.pt")
"""
)
NAMED = (
    HEAD
    + """model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
for epoch in range(3):
    bar = tqdm(loader, desc=f"{epoch}", disable=True)
    for i, (a, b) in enumerate(bar):
        opt.zero_grad()
        loss = (1 + i) * F.mse_loss(model(a), b)
        loss.backward()
        opt.step()
        bar.set_description(f"{loss.item():.3f}")
torch.save(model.state_dict(), "model.pt")
"""
)
GLOBAL = (
    HEAD
    + """model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
trace = []


def rates(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * 0.5 ** epoch


def train(epoch):
    rates(opt, epoch)
    for a, b in tqdm(loader, disable=True):
        opt.zero_grad()
        F.mse_loss(model(a), b).backward()
        opt.step()
        trace.append(epoch)


for epoch in range(3):
    train(epoch)
torch.save({**model.state_dict(), "trace": trace}, "model.pt")
"""
)
SCRIPTS = {"mnist": MNIST, "best": BEST, "named": NAMED, "global": GLOBAL}


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_comes_to_the_same_to_the_bit_left_in_peace_and_struck(name, tmp_path):
    mended = converted(SCRIPTS[name])
    expected = run(SCRIPTS[name], tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 5, 9)) == 0.0, mended
    if name == "best":
        best = torch.load(tmp_path / "plain" / "best.pt")
        assert differs(best, torch.load(tmp_path / "struck" / "best.pt")) == 0.0


def test_the_function_is_given_the_session_and_stays_a_function():
    text = converted(MNIST)
    assert "from sublet import train as elastic" in text  # the script has a `train` of its own
    assert "def train(args, model, device, train_loader, optimizer, epoch, s):" in text
    assert "            epoch += 1  # as it was: from 1\n" in text
    assert "            train(args, model, device, train_loader, optimizer, epoch, s)\n" in text
    assert "        for batch_idx, (data, target) in enumerate(s):\n" not in text  # as deep as it was
    assert "    for batch_idx, (data, target) in enumerate(s):\n" in text
    assert "epochs=args.epochs)" in text
    assert "    Nothing is returned.\n" in text


def test_what_it_keeps_is_given_to_the_function_too():
    text = converted(GLOBAL)
    assert "def train(epoch, s, kept):" in text
    assert "    train(epoch, s, kept)" in text
    assert "kept.trace.append(epoch)" in text


def test_what_it_returns_is_still_returned():
    text = converted(BEST)
    assert "    return total / len(batches)\n" in text
    assert "loss = one_epoch(net, loader, opt, nn.MSELoss(), 0.5 ** epoch, s)" in text
    assert "    bar = tqdm(s, disable=True)\n" in text


@pytest.mark.parametrize(
    ("defined", "called", "given"),
    [
        ("def train(epoch, every=2, *, shown='x'):", "train(epoch)", "train(epoch, s=s, kept=kept)"),
        ("def train(epoch, every=2):", "train(epoch, every=3)", "train(epoch, every=3, s=s, kept=kept)"),
        ("def train(epoch, every=2):", "train(epoch, 3)", "train(epoch, 3, s, kept)"),
        ("def train(\n    epoch,\n):", "train(\n        epoch,\n    )", "train(epoch, s, kept,)"),
    ],
)
def test_arguments_that_are_left_out_or_by_name_stay_what_they_are(defined, called, given):
    source = GLOBAL.replace("def train(epoch):", defined).replace("    train(epoch)\n", f"    {called}\n")
    text = converted(source)
    plain = "".join(text.split())
    assert "".join(given.split()) in plain
    compile(text, "train.py", "exec")
    tree = ast.parse(text)
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "train")
    assert {"s", "kept"} <= {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}


REFUSED = {
    "`return` is amid": ("    rates(opt, epoch)\n", "    if epoch > 5:\n        return\n"),
    "`break` goes by `model": (
        "        trace.append(epoch)\n",
        "        if model[0].weight.sum() > 5:\n            break\n",
    ),
    "more than a plain function": ("    rates(opt, epoch)\n", "    rate = lambda: 0.1\n"),
    "amid an expression": ("    train(epoch)\n", "    print(train(epoch))\n"),
    "not called with all of its arguments": ("def train(epoch):", "def train(epoch, more=[]):"),
    "before the batches of an epoch": ("    rates(opt, epoch)\n", "    model[0].weight.data.mul_(0.9)\n"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused_with_a_line_of_the_script(why):
    old, new = REFUSED[why]
    assert old in GLOBAL
    source = GLOBAL.replace(old, new)
    with pytest.raises(CannotConvert, match=why) as caught:
        converted(source)
    changed = source.splitlines()[caught.value.line - 1]
    assert changed.strip() in (*(line.strip() for line in new.splitlines()), "def train(epoch):", "train(epoch)")


def test_a_name_that_the_caller_has_for_something_else_is_refused():
    """In the place of the call it would be another thing."""
    source = GLOBAL.replace("F.mse_loss(model(a), b).backward()", "(power * F.mse_loss(model(a), b)).backward()")
    source = source.replace("trace = []\n", "trace = []\npower = 2.0\n").replace("        trace.append(epoch)\n", "")
    source = source.replace(
        "for epoch in range(3):\n    train(epoch)\n",
        "def main():\n    power = 0.1\n    for epoch in range(3):\n        train(epoch)\n    print(power)\n\nmain()\n",
    )
    with pytest.raises(CannotConvert, match="power"):
        converted(source)
    assert "def train(epoch, s):" in converted(
        source.replace("    power = 0.1\n", "").replace("    print(power)\n", "")
    )
