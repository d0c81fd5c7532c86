"""Loops as people write them: bars in a `with`, functions with all epochs, `global` names; to the bit, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
x = torch.rand(18, 4)
y = 3 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
n = 0
"""
SAVE = 'torch.save({**model.state_dict(), "n": n}, "model.pt")\n'
UPDATE = """opt.zero_grad()
loss = F.mse_loss(model(a), b)
loss.backward()
opt.step()
"""


def deep(spaces: int, text: str = UPDATE) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


SCRIPTS = {
    "a bar in a with": f"""
for epoch in range(3):
    with tqdm(loader, unit="batch", disable=True) as bar:  # shown
        bar.set_description(f"epoch {{epoch}}")
        for i, (a, b) in enumerate(bar, 1):
            opt.param_groups[0]["lr"] = 0.02 / i
{deep(12)}            n += 1
            bar.set_postfix(loss=loss.item())
        print(epoch, n)
""",
    "a bar that is told": f"""
for epoch in range(3):
    with tqdm(total=len(loader),
              desc=f"{{epoch}} "
                   f"of 3", disable=True) as bar:
        for a, b in loader:
{deep(12)}            bar.update(1)
            n += 1
""",
    "a bar in a function": f"""
def one_epoch(epoch):
    global n
    model.train()
    with tqdm(loader, disable=True) as bar:
        for a, b in bar:
{deep(12)}            n += 1
    print(f"epoch {{epoch}} "
          f"steps {{n}}")
    return n


for epoch in range(3):
    one_epoch(epoch)
""",
    "all epochs in a function": f"""
def one_epoch(net, batches, optimizer):
    total = 0.0
    for a, b in batches:
{deep(8).replace("opt.", "optimizer.").replace("model(", "net(")}        total += loss.item()
    return total / len(batches)


def fit(net, train_dl, optimizer, epochs, n=0):
    best = math.inf
    for epoch in range(1, epochs + 1):
        mean = one_epoch(net, train_dl, optimizer)
        with torch.no_grad():
            held = F.mse_loss(net(x), y).item()
        if held < best:
            best, n = held, epoch
    print(mean)
    return best, n


best, n = fit(model, loader, opt, epochs=3)
""",
    "a best in a function": f"""
def one_epoch():
    for a, b in loader:
{deep(8)}

def test(epoch):
    global n
    with torch.no_grad():
        held = F.mse_loss(model(x), y).item()
    if held < 100 - 3 * n:
        n += 1
        torch.save(model.state_dict(), "best.pt")


for epoch in range(3):
    one_epoch()
    test(epoch)
""",
}


SCRIPTS |= {
    "a count before the step": f"""
begin, beta = 0, 0.0
steps = 3
for epoch in range(begin, begin + 3):
    for a, b in loader:
        steps += 1
        beta = min(1.0, steps / 12)
{deep(8).replace("F.mse", "beta * F.mse")}    print(epoch, steps, beta)
    n += epoch
""",
    "loaders and an optimizer of functions": f"""
def get_loaders(size, more=0):
    \"\"\"Of all samples.\"\"\"
    rows = TensorDataset(x, y)
    train = DataLoader(rows, batch_size=size, num_workers=more, generator=torch.Generator())
    held_out = DataLoader(rows, batch_size=9, generator=torch.Generator())
    return train, held_out


def get_optimizer(net, lr):
    return torch.optim.Adam(net.parameters(), lr=lr)


def main():
    batches, held_out = get_loaders(5)
    optimizer = get_optimizer(model, 0.01)
    best = math.inf
    for epoch in range(3):
        for a, b in batches:
{deep(12).replace("opt.", "optimizer.")}        with torch.no_grad():
            held = sum(F.mse_loss(model(a), b).item() for a, b in held_out)
        best = min(best, held)
    return best


n = main()
""",
    "an argument ends its epochs": f"""
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--dry-run", action="store_true")
args = parser.parse_args(["--dry-run"])


def one_epoch(args, epoch):
    global n
    for i, (a, b) in enumerate(loader):
{deep(8)}        n += 1
        if i % 2 == 1:
            print(epoch, i, loss.item())
            if args.dry_run:
                break


for epoch in range(1, 7):
    one_epoch(args, epoch)
""",
    "so many batches of an epoch": f"""
for epoch in range(6):
    for i, (a, b) in enumerate(loader):
        if i >= 1 + epoch % 3:
            break
{deep(8)}        n += i
""",
    "so many steps in all": f"""
limit = 11
for epoch in range(9):
    for a, b in loader:
{deep(8)}        n += 1
        if n >= limit: break
    if n >= limit:
        break
""",
    "one batch over and over": f"""
for epoch in range(12):
    for a, b in loader:
{deep(8)}        break
    n += epoch
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_comes_to_the_same_to_the_bit_left_in_peace_and_struck(name, tmp_path):
    source = HEAD + SCRIPTS[name] + SAVE
    mended = converted(source)
    expected = run(source, tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 3, 9)) == 0.0, mended
    if (tmp_path / "plain" / "best.pt").exists():
        best = torch.load(tmp_path / "plain" / "best.pt")
        assert differs(best, torch.load(tmp_path / "struck" / "best.pt")) == 0.0


def test_a_with_stays_one_and_functions_stay_functions():
    bar = converted(HEAD + SCRIPTS["a bar in a with"] + SAVE)
    assert '        with tqdm(s, unit="batch", disable=True) as bar:  # shown\n' in bar
    assert "            for (a, b) in bar:\n                i = s.steps % len(loader) + 1\n" in bar
    told = converted(HEAD + SCRIPTS["a bar that is told"] + SAVE)
    assert "        with tqdm(total=len(loader),\n" in told
    assert "            for a, b in s:\n" in told
    inner = converted(HEAD + SCRIPTS["a bar in a function"] + SAVE)
    assert "def one_epoch(epoch, s, kept):\n    model.train()\n    with tqdm(s, disable=True) as bar:\n" in inner
    assert "global" not in inner  # what it was for is kept
    both = converted(HEAD + SCRIPTS["all epochs in a function"] + SAVE)
    assert "def one_epoch(net, batches, optimizer, s):\n" in both
    assert "    with train.session(net, optimizer, train_dl, epochs=epochs) as s:\n" in both
    assert "        kept = s.keep(best=best, n=n)\n" in both
    assert "best, n = fit(model, loader, opt, epochs=3)\n" in both


BEST = SCRIPTS["a best in a function"]
REFUSED = {
    "used in test()": BEST.replace("for epoch in range(3):", "test(0)\nfor epoch in range(3):"),
    "used in show()": BEST.replace("for epoch in", "class A:\n    def show(self):\n        print(n)\n\n\nfor epoch in"),
    "`break` goes by `loss.item()`": BEST.replace(
        "        opt.step()\n", "        opt.step()\n        if loss.item() > 9: break\n"
    ),
    "`break` goes by `time.time()`": BEST.replace(
        "        opt.step()\n",
        "        opt.step()\n        late = 9 + time.time()\n        if late > 9:\n            break\n",
    ).replace("def test", "import time\n\n\ndef test"),
    "`break` goes by `time.monotonic()`": BEST.replace(
        "        opt.step()\n",
        "        opt.step()\n        late['s'] = time.monotonic()\n        if late['s'] > 9:\n            break\n",
    ).replace("def test", "import time\n\nlate = {}\n\n\ndef test"),
    "`break` is between backward and step": BEST.replace(
        "        opt.step()\n", "        if n > 9: break\n        opt.step()\n"
    ),
    "`break` is in a loop within": BEST.replace(
        "        opt.step()\n", "        opt.step()\n        for k in range(3):\n            break\n"
    ),
    "`continue` is in the loop": BEST.replace(
        "        opt.zero_grad()\n", "        if n > 9: continue\n        opt.zero_grad()\n"
    ),
    "`steps` is remembered from step to step": SCRIPTS["a count before the step"].replace("n += epoch", "n = steps"),
    "the loop around it is not `for epoch in range(N)`": f"""
begin = 0


def resume():
    global begin
    begin = 2


resume()
for epoch in range(begin, 5):
    for a, b in loader:
{deep(8)}    print(epoch)
""",
    "parameters are unfrozen": BEST.replace("    one_epoch()", "    model[0].requires_grad_()\n    one_epoch()"),
    "training and evaluation go through one loop": f"""
for epoch in range(3):
    for phase in ["train", "val"]:
        for a, b in loader:
{deep(12)}""",
    "one_epoch() trains, and is called more than once": BEST.replace(
        "    one_epoch()", "    one_epoch()\n    one_epoch()"
    ),
    "the loop is in a method, Trainer.train()": f"""
class Trainer(dict):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def train(self):
        for a, b in loader:
{deep(12).replace("opt.", "self.optimizer.")}

    def fit(self):
        for epoch in range(3):
            self.train()


Trainer(torch.optim.SGD(model.parameters(), lr=0.1)).fit()
""",
    "what main() remembers is also asked for elsewhere": f"""
def main(epochs):
    global n
    for epoch in range(epochs):
        for a, b in loader:
{deep(12)}            n += 1


main(3)
""",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_would_be_asked_for_where_it_is_not_is_refused(why):
    with pytest.raises(CannotConvert) as caught:
        converted(HEAD + REFUSED[why] + SAVE)
    assert why in caught.value.why
    if "method" in why:
        assert "train.session(model, self.optimizer, loader, epochs=3) as s:` and in it" in caught.value.do
        assert "in place of lines 22, 24, 25" in caught.value.do
