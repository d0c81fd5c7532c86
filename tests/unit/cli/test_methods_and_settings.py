"""Trainings that are written as methods, averages in objects, settings of datasets: to the bit, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import copy
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x = torch.rand(18, 4)
y = 3 * x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 1))
"""
SAVE = 'torch.save(model.state_dict(), "model.pt")\n'
OPTIMIZER = "opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)\n"
UPDATE = """opt.zero_grad()
loss = F.mse_loss(model(a), b)
loss.backward()
opt.step()
"""
OF_SELF = UPDATE.replace("opt.", "self.opt.").replace("model(", "self.model(")


def deep(spaces: int, text: str = UPDATE) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


TRAINER = f"""
class Trainer:
    \"\"\"Trains.\"\"\"

    def __init__(self, model, loader, lr=0.02, *, epochs):
        self.model = model
        self.loader = loader
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
        self.epochs = epochs
        self.best = math.inf
        self.history = []

    def log(self, text):
        print(text)

    @torch.no_grad()
    def held_out(self):
        self.model.eval()
        return F.mse_loss(self.model(x), y).item()

    def one_epoch(self, epoch):
        self.model.train()
        total = 0.0
        for a, b in self.loader:
{deep(12, OF_SELF)}            total += loss.item()
        self.log(f"epoch {{epoch}} of {{self.epochs}}")
        return total / len(self.loader)

    def fit(self):
        for epoch in range(self.epochs):
            mean = self.one_epoch(epoch)
            held = self.held_out()
            self.history.append(held)
            if held < self.best:  # self.best is the lowest
                self.best = held
                torch.save(self.model.state_dict(), "best.pt")
            print(mean)
        torch.save({{**self.model.state_dict(), "best": self.best, "of": self.history}}, "model.pt")

"""
WHOLE = f"""
class Run:
    def __init__(self, net):
        self.net = net.float()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.01)
        print("made")

    def __len__(self):
        return 3

    def run(self, epochs=3):
        for epoch in range(1, epochs + 1):
            for i, (a, b) in enumerate(self.batches):
                self.opt.param_groups[0]["lr"] = 0.02 / (i + 1)
{deep(16, OF_SELF).replace("self.model", "self.net")}

run = Run(model)
run.run()
"""
AVERAGE = f"""
class Average:
    \"\"\"Of weights.\"\"\"

    def __init__(self, net, decay=0.9):
        self.of = net
        self.net = copy.deepcopy(net).eval()
        self.decay = decay
        for p in self.net.parameters():
            p.requires_grad_(False)

    def update(self):
        with torch.no_grad():
            for mine, new in zip(self.net.parameters(), self.of.parameters()):
                mine.mul_(self.decay).add_(new, alpha=1 - self.decay)


average = Average(model, 0.8)
best = math.inf
for epoch in range(3):
    for a, b in loader:
{deep(8)}        average.update()
    with torch.no_grad():
        best = min(best, F.mse_loss(average.net(x), y).item())
averages = {{f"average {{n}}": v for n, v in average.net.state_dict().items()}}
torch.save({{**model.state_dict(), **averages, "best": best}}, "model.pt")
"""
SETTING = f"""
class Rows(Dataset):
    def __init__(self):
        self.level = 0.1
        self.noise = 0.0

    def set_level(self, level, most=1.0):
        \"\"\"How hard.\"\"\"
        self.level = min(level, most)

    def harder(self):
        self.noise += 0.25

    def __len__(self):
        return len(x)

    def __getitem__(self, i):
        return x[i] * self.level + self.noise, y[i]


rows = Rows()
batches = DataLoader(rows, batch_size=4, generator=torch.Generator(), num_workers=WORKERS)
for epoch in range(3):
    rows.set_level(0.1 + 0.3 * epoch)
    if epoch > 0:
        rows.harder()
    for a, b in batches:
{deep(8)}    rows.level = 0.05
"""
PREFETCHED = """
def draw(n):
    rows = torch.randint(len(x), (n,))
    a, b = torch.stack([x[i] for i in rows]), y[rows].clone()
    return a.to("cpu"), b


a, b = draw(4)
for step in range(13):
    opt.zero_grad()
    loss = F.mse_loss(model(a), b)
    a, b = draw(4)
    loss.backward()
    opt.step()
"""
SCRIPTS = {
    "methods": TRAINER + "Trainer(model, loader, epochs=3).fit()\n",
    "a trainer with a name": TRAINER
    + """
def main():
    trainer = Trainer(model, loader, 0.01, epochs=len([1, 2, 3]))
    print("begins")
    trainer.fit()
    print(trainer.model)


if __name__ == "__main__":
    main()
""",
    "all in one method": WHOLE.replace("    def __len__(self):\n        return 3\n\n", "").replace(
        "        print(", "        self.batches = loader\n        print("
    )
    + SAVE,
    "an average in an object": OPTIMIZER + AVERAGE,
    "a setting of a dataset": OPTIMIZER + SETTING.replace("WORKERS", "0") + SAVE,
    "a batch that is drawn ahead": OPTIMIZER + PREFETCHED + SAVE,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_converted_comes_to_the_same(name, tmp_path):
    source = HEAD + SCRIPTS[name]
    after = converted(source)
    plain = run(source, tmp_path / "plain")
    assert differs(plain, run(after, tmp_path / "calm")) == 0
    assert differs(plain, run_struck(after, tmp_path / "struck", 3, 7, 11)) == 0
    best = tmp_path / "plain" / "best.pt"
    if best.exists():
        assert differs(torch.load(best), torch.load(tmp_path / "struck" / "best.pt")) == 0


def test_a_setting_reaches_workers_of_a_loader(tmp_path):
    source = HEAD + OPTIMIZER + SETTING.replace("WORKERS", "1") + SAVE
    plain, after = run(source, tmp_path / "plain"), converted(source)
    assert differs(plain, run_struck(after, tmp_path / "struck", 6)) == 0


def test_the_class_is_written_as_it_was():
    source = HEAD + SCRIPTS["methods"]
    after = converted(source)
    assert "with train.session(self.model, self.opt, self.loader, epochs=self.epochs) as s:" in after
    assert "kept = s.keep(best=self.best, history=self.history)" in after
    assert "if held < kept.best:  # self.best is the lowest" in after.replace("kept.best is", "self.best is")
    assert "mean = self.one_epoch(epoch, s)" in after
    assert "def one_epoch(self, epoch, s):" in after
    assert "def log(self, text):" in after
    untouched = source[source.index("class Trainer") : source.index("    def one_epoch")]
    assert untouched in after


def test_an_average_is_kept_by_its_module():
    assert "kept = s.keep(average=average.net, best=best)" in converted(HEAD + OPTIMIZER + AVERAGE)


FIT = "Trainer(model, loader, epochs=3).fit()"
NAMED = "t = Trainer(model, loader, epochs=3)\nt.fit()\n"
HELD = "        return F.mse_loss(self.model(x), y).item()"
ODD_TRAINERS = {
    "what another method remembers": ("        self.log(f", "        self.best = total\n        self.log(f"),
    "an attribute that is made later": ("            mean = ", "            self.late = epoch\n            mean = "),
    "an object that is handed on": ('        self.log(f"', '        print(self)\n        self.log(f"'),
    "a class of another": ("class Trainer:", "class Trainer(Base):"),
    "a property": ("    @torch.no_grad()", "    @property"),
    "an object that is called twice": (FIT, f"{NAMED}t.fit()"),
    "a best that is asked for later": (FIT, f"{NAMED}print(t.best)"),
    "one for each of several": (FIT, "for lr in (0.1, 0.2):\n    Trainer(model, loader, lr, epochs=3).fit()"),
    "an init with a choice": (
        "self.history = []",
        "self.history = []\n        if lr > 1:\n            self.epochs = 1",
    ),
    "an evaluation that goes by the best": (HELD, "        self.log(self.best)\n" + HELD),
}


@pytest.mark.parametrize("name", ODD_TRAINERS)
def test_another_form_of_a_class_is_refused(name):
    was, now = ODD_TRAINERS[name]
    source = HEAD + SCRIPTS["methods"]
    assert source.count(was) == 1
    with pytest.raises(CannotConvert) as refused:
        converted(source.replace(was, now))
    assert "Trainer" in refused.value.why
    assert "_of_Trainer" not in refused.value.why + refused.value.do


def test_what_a_method_cannot_see_is_not_written_into_it():
    """Which of two it is nobody knows, so it counts as an object of its own beside what the optimizer has."""
    source = HEAD + SCRIPTS["a trainer with a name"].replace("self.model = model", "self.model = model.to('cpu')")
    made = "    net = model if epochs else nn.Linear(4, 1)\n    net = net or model\n    trainer = Trainer(net, "
    source = source.replace("    trainer = Trainer(model, ", made).replace("def main():", "def main(epochs=3):")
    source = source.replace("    print(trainer.model)", '    torch.save(net.state_dict(), "model.pt")')
    with pytest.raises(CannotConvert, match=r"`net` is part of the training, and is not seen in its methods"):
        converted(source)


def test_a_loop_in_a_method_is_refused_with_the_line_that_it_has():
    source = HEAD + SCRIPTS["methods"].replace("total += loss.item()", "self.history.append(loss.item())")
    with pytest.raises(CannotConvert, match=r"`loss` comes from a worker's own part") as refused:
        converted(source)
    assert "self.history.append(loss.item())" in source.splitlines()[refused.value.line - 1]


DECAY = "        self.decay = decay\n"
ODD_AVERAGES = {
    "a count": ("            for mine, new", "            self.decay *= 0.9\n            for mine, new"),
    "a list": (DECAY, f"{DECAY}        self.seen = []\n"),
    "two modules": (DECAY, f"{DECAY}        self.other = copy.deepcopy(net)\n"),
    "no copy": ("copy.deepcopy(net).eval()", "net"),
    "another's class": ("class Average:", "class Average(Dataset):"),
    "an argument that may be anything": ("Average(model, 0.8)", "Average(model, {'decay': 0.8})"),
    "who is handed it": ("            for mine, new", "            print(self)\n            for mine, new"),
}


@pytest.mark.parametrize("name", ODD_AVERAGES)
def test_an_object_that_remembers_more_is_refused(name):
    was, now = ODD_AVERAGES[name]
    source = HEAD + OPTIMIZER + AVERAGE
    assert source.count(was) == 1
    with pytest.raises(CannotConvert, match="Average"):
        converted(source.replace(was, now))


LEVEL = "    rows.set_level(0.1 + 0.3 * epoch)"
ODD_SETTINGS = {
    "amid the batches, by the epoch": (
        "        opt.zero_grad()\n",
        "        rows.level = epoch\n        opt.zero_grad()\n",
    ),
    "amid the batches": ("        opt.step()\n", "        opt.step()\n        rows.harder()\n"),
    "the number of samples": ("        return len(x)", "        return len(x) if self.level < 1 else 3"),
    "dice": ("        self.noise += 0.25", "        self.noise = torch.rand(1).item()"),
    "an object": ("        self.noise += 0.25", "        self.noise = Rows()"),
    "workers that stay": ("num_workers=0", "num_workers=1, persistent_workers=True"),
    "a part of a batch": ("    rows.level = 0.05", "    rows.level = loss.item()"),
    "a part of the batch before": (LEVEL, "    rows.set_level(0.1 if epoch == 0 else loss.item())"),
    "something else, too": ("        self.noise += 0.25", "        self.noise += 0.25\n        x.mul_(0.5)"),
    "the model": (LEVEL, "    rows.set_level(model[0].weight.abs().max())"),
    "a loader with another dataset by then": (
        "rows = Rows()\n",
        "rows = Rows()\nrows = Rows() if len(x) > 99 else rows\n",
    ),
}


@pytest.mark.parametrize("name", ODD_SETTINGS)
def test_other_changes_of_a_dataset_are_refused(name):
    was, now = ODD_SETTINGS[name]
    source = HEAD + OPTIMIZER + SETTING.replace("WORKERS", "0") + SAVE
    assert source.count(was) == 1
    with pytest.raises(CannotConvert):
        converted(source.replace(was, now))


ODD_DRAWS = {
    "an iterator": ('    return a.to("cpu"), b', "    return iter([a]), b"),
    "what is somebody's": ('    return a.to("cpu"), b', "    return x, b"),
    "what is somebody's at first": ("\na, b = draw(4)\n", "\ndef first():\n    return x, y\n\n\na, b = first()\n"),
    "one after the other": ('    return a.to("cpu"), b', "    yield a\n    yield b"),
    "nothing at times": ('    return a.to("cpu"), b', "    if n > 3:\n        return\n    return a, b"),
}


@pytest.mark.parametrize("name", ODD_DRAWS)
def test_what_else_a_function_returns_is_not_kept(name):
    was, now = ODD_DRAWS[name]
    source = HEAD + OPTIMIZER + PREFETCHED + SAVE
    assert source.count(was) == 1
    with pytest.raises(CannotConvert, match=r"`[ab]`"):
        converted(source.replace(was, now))
