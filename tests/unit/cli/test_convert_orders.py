"""What `sublet convert` reads of a loop: how long it is, in which order it updates, what it carries, where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from sublet.cli.main import run
from sublet.cli.work.script.convert import convert
from sublet.cli.work.script.reading import CannotConvert, Script

HEAD = """import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

model = nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4)
"""
PLAIN = """for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
"""


def converted(source):
    return convert(Script(Path("train.py"), source)).text


def refused(source):
    with pytest.raises(CannotConvert) as error:
        convert(Script(Path("train.py"), source))
    return error.value


MADE = """import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4)
n = 0
"""
TURN = "opt.zero_grad()\nmodel(x).mean().backward()\nopt.step()\n"


CLIPS = """        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
CLEARS = "    for x, y in loader:\n        opt.zero_grad()\n"
ASKS = "it = iter(loader)\nwhile True:\n    x = next(it)\n"
FIRST = "it = iter(loader)\nwhile True:\n    if n == 9:\n        break\n    x = next(it)\n"


def deep(spaces, text):
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("loop", "extent"),
    [
        ("while n < 12:\n    for x in loader:\n" + deep(8, TURN + "n += 1\nif n >= 12:\n    break"), "steps=12"),
        ("while n < 12:\n    for x in loader:\n" + deep(8, TURN + "n += 1"), "epochs=-(-12 // len(loader))"),
        ("while n <= 12:\n    for x in loader:\n" + deep(8, TURN) + "    n += 1\n", "epochs=13"),
        (
            ASKS + deep(4, TURN + "n += 1\nif n > 9:\n    break"),
            "steps=10",
        ),
        (
            ASKS + deep(4, TURN + "n += 1\nif n >= 9:\n    break"),
            "steps=9",
        ),
        (
            ASKS + deep(4, TURN + "if n == 9:\n    break\nn += 1"),
            "steps=10",
        ),
        (
            "it = iter(loader)\nwhile True:\n    if n == 9:\n        break\n    x = next(it)\n"
            + deep(4, TURN + "n += 1"),
            "steps=9",
        ),
        ("it = iter(loader)\nfor i in range(2, 9):\n    x = next(it)\n" + deep(4, TURN), "steps=7"),
        ("for i in range(7):\n    x = get_batch()\n" + deep(4, TURN), "steps=7"),
        ("for e in range(1, args.n + 1):\n    for x in loader:\n" + deep(8, TURN), "epochs=args.n"),
        ("for e in range(start + 1, start + args.n + 1):\n    for x in loader:\n" + deep(8, TURN), "epochs=args.n"),
        ("for e in range(start, args.n):\n    for x in loader:\n" + deep(8, TURN), "epochs=args.n"),
        ("for e in range(start, start + 20):\n    for x in loader:\n" + deep(8, TURN), "epochs=20"),
        ("for i, x in enumerate(loader, 1):\n" + deep(4, TURN + "if i == 9:\n    break"), "steps=9"),
        ("for i, x in enumerate(loader):\n" + deep(4, TURN + "if i + 1 == 9:\n    break"), "steps=9"),
    ],
)
def test_a_training_is_as_long_as_its_loops_say(loop, extent):
    head = "def get_batch():\n    return torch.rand(4, 2)\n\n\n"
    assert f", {extent})" in " ".join(converted(MADE + head + loop).replace("(\n", "(").split())


@pytest.mark.parametrize(
    ("loop", "head"),
    [
        ("range(start, args.n)", "e += kept.start\n        if e >= args.n:\n            break\n"),
        ("range(start + 1, start + 20)", "e += kept.start + 1\n"),
        ("range(5, 9)", "e += 5\n"),
    ],
)
def test_epochs_begin_where_the_first_start_of_the_script_began(loop, head):
    made = converted(f"{MADE}for e in {loop}:\n    print(e)\n    for x in loader:\n" + deep(8, TURN))
    assert f"    for e in s.epochs():\n        {head}        print(e)\n" in made
    assert ("s.keep(start=start)" in made) == ("start" in loop)


RESUMED = "if args.go_on:\n    n = torch.load('last.pt')\n"


def test_steps_that_begin_elsewhere_are_counted_from_there_or_refused():
    made = converted(MADE + RESUMED + ASKS + deep(4, TURN + "n += 1\nif n > 9:\n    break"))
    assert "    kept = s.keep(n=n)\n    for x in s:\n        n = s.steps + kept.n\n" in made
    assert made.endswith("            if n > 9:\n                break\n")
    for head in ("while n < 9:\n    x = next(it)\n", "for i in range(n, 9):\n    x = next(it)\n"):
        assert (
            "the turns begin at `n`"
            in refused(MADE + RESUMED + "it = iter(loader)\n" + head + deep(4, TURN + "n += 1")).why
        )
    epochs = "while n < 9:\n    for x in loader:\n" + deep(8, TURN) + "    n += 1\n"
    assert ", epochs=9)" in converted(MADE + epochs)
    assert "the turns begin at `n`" in refused(MADE.replace("n = 0", "n = args.begin") + epochs).why


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("        opt.zero_grad()\n", "", "never cleared"),
        ("        opt.step()\n", "        opt.zero_grad()\n        opt.step()\n", "cleared between"),
        ("        opt.zero_grad()\n", "        if n:\n            opt.zero_grad()\n", "cleared in some turns"),
        (
            "    for x, y in loader:\n        opt.zero_grad()\n",
            "    opt.zero_grad()\n    for x, y in loader:\n",
            "once for",
        ),
        ("opt.step()\n", "opt.step()\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "after the step"),
        ("        opt.step()\n", "        scale_(model.parameters())\n        opt.step()\n", "is given the parameters"),
        ("        opt.step()\n", CLIPS + "        opt.step()\n", "the norm is clipped after the values"),
        ("    for x, y in loader:\n", "    loader = again()\n    for x, y in loader:\n", "made anew in the loop"),
    ],
)
def test_an_update_in_another_order_is_refused(old, new, why):
    assert why in refused(HEAD + PLAIN.replace(old, new)).why


def test_what_is_kept_has_its_name_within_the_loss_too():
    loop = PLAIN.replace("F.mse_loss(model(x), y)", "(tau * F.mse_loss(model(x), y))")
    made = converted(f"{HEAD}tau = 1.0\n{loop}    tau *= 0.5\n")
    assert "            s.step(kept.tau * F.mse_loss(model(x), y))\n        kept.tau *= 0.5\n" in made


ACCUMULATED = """for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        (loss / args.k).backward()
        if (i + 1) % args.k == 0:
            opt.step()
            opt.zero_grad()
            n += 1
"""


def test_a_division_by_the_batches_of_a_step_goes():
    made = converted(HEAD + "n = 0\n" + ACCUMULATED)
    assert "            s.step(loss)\n            if s.updated:\n                n += 1\n" in made
    assert "    global_batch=loader.batch_size * args.k,\n    micro_batch=loader.batch_size,\n" in made
    assert "            n = s.steps\n" in made


def test_a_meter_is_told_of_turns_without_an_update_too():
    alone = PLAIN.replace("opt.step()\n", "opt.step()\n        meters.update(loss=1)\n")
    assert converted(HEAD + alone).endswith("            meters.update(loss=1)\n")
    lines = "        n += 1\n        a, b = top(x)\n        meters.update(loss=a)\n"
    made = converted(HEAD + "n = 0\n" + PLAIN.replace("opt.step()\n", "opt.step()\n" + lines))
    assert (
        "            if s.updated:\n                n += 1\n            a, b = top(x)\n            meters.update("
        in made
    )


EVALUATED = """for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    print(loss.item())
    for x, y in held:
        loss = F.l1_loss(model(x), y)
        print(loss.item())
"""


def test_only_the_loss_of_the_step_is_that_of_all_workers():
    made = converted(HEAD + EVALUATED)
    assert "            total += s.loss\n        print(s.loss)\n" in made
    assert made.endswith("            loss = F.l1_loss(model(x), y)\n            print(loss.item())\n")


ENDLESS = """class Endless:
    def __init__(self, data):
        sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=int(1e10))
        self.loader = DataLoader(data, sampler=sampler)
        self.batches = iter(self.loader)

    def next(self):
        return next(self.batches)


batches = Endless(data)
while True:
    x = batches.next()
"""


def test_batches_of_a_class_are_those_of_its_loader_unless_it_changes_them():
    source = MADE + ENDLESS + deep(4, TURN + "n += 1\nif n >= 9:\n    break")
    made = converted(source)
    assert "with train.session(model, opt, batches.loader, steps=9) as s:\n    for x in s:\n" in made
    assert "replacement=True, num_samples=len(data))" in made
    changed = source.replace("return next(self.batches)", "return self.turned(next(self.batches))")
    assert refused(changed).why == "batches come from Endless, a class of the script"


@pytest.mark.parametrize(
    ("loss", "summed"),
    [
        ("F.mse_loss(model(x), y, reduction='sum')", True),
        ("own_loss(model(x), y)", True),
        ("(model(x) - y).pow(2).sum()", True),
        ("(model(x) - y).pow(2).sum() / len(x)", False),
        ("torch.stack([(model(x) - y).pow(2).sum()]).mean()", False),
        ("own_loss(model(x), y) / len(x)", False),
    ],
)
def test_a_sum_that_nothing_divides_is_said_to_the_session(loss, summed):
    own = "\n\ndef own_loss(a, b):\n    lost = (a - b) ** 2\n    return lost.sum()\n\n\n"
    given = PLAIN.replace("F.mse_loss(model(x), y).backward()", f"loss = {loss}\n        loss.backward()")
    assert ('reduction="sum"' in converted(HEAD + own + given)) == summed


BEST = """best = 0


def test():
    global best
    if held() > best:
        best = held()


"""


def test_a_number_that_a_function_changes_is_kept():
    made = converted(HEAD + BEST + PLAIN + "    test()\n")
    assert "    kept = s.keep(best=best)\n" in made
    assert "    if held() > kept.best:\n        kept.best = held()\n" in made


TRAINER = """import torch


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.best = 0.0

    def train(self):
        for epoch in range(3):
            self.model.train()
            for x in self.loader:
                self.opt.zero_grad()
                self.model(x).mean().backward()
                self.opt.step()
            if held() > self.best:
                self.best = held()
                torch.save(1, "best.pt")
"""


def test_values_of_a_trainer_are_kept_from_epoch_to_epoch():
    made = converted(TRAINER)
    assert "            kept = s.keep(best=self.best)\n            for epoch in s.epochs():\n" in made
    assert "                self.best = kept.best\n                self.model.train()\n" in made
    assert made.endswith("                kept.best = self.best\n")


def test_a_loop_in_an_imported_file_is_found(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loops.py").write_text("def fit(model, loader, opt):\n" + deep(4, PLAIN))
    Path("train.py").write_text("from loops import fit\n\nfit(model, loader, opt)\n")
    run(["convert", "--no-rehearse", "--write", "train.py"])
    assert "+++ b/loops.py" in capsys.readouterr().out
    assert "train.session(model, opt, loader, epochs=3)" in Path("loops.py").read_text()
    assert "session" not in Path("train.py").read_text()


def test_batches_of_a_function_that_is_called_from_elsewhere_are_no_training():
    source = "def fit(model, loader, opt):\n    for x in loader:\n" + deep(8, TURN)
    assert "the loop over epochs is in another file" in refused(source).why
