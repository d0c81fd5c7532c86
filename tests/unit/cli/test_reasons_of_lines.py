"""Lines of a loop that were refused for a reason that was not theirs: converted to the bit, or told the one that is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted, differs, run, run_struck  # noqa: E402

HEAD = """import os
from collections import Counter, OrderedDict, defaultdict, deque
from math import inf

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(18, 4)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4, generator=torch.Generator())
"""
MODEL = "model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 1))\n"
OPT = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
MEAN, SUM = "F.mse_loss(model(a), b)", "F.mse_loss(model(a), b, reduction='sum')"
LOSS = f"loss = {MEAN}"
STEP = "opt.zero_grad()\nloss.backward()\nopt.step()"
RATE = "opt.param_groups[0]['lr'] ="
SAVE = 'torch.save({"m": model.state_dict(), "r": str(REST)}, "model.pt")\n'


def indented(lines: str, deep: int) -> str:
    return "".join(f"{'    ' * deep}{line}\n" for line in lines.splitlines())


def looped(turn: str, before: str = "", after: str = "", first: str = "", rest: str = "0", model: str = MODEL) -> str:
    return (
        f"{HEAD}{model}{OPT}{indented(before, 0)}for epoch in range(3):\n{indented(first, 1)}    for a, b in loader:\n"
        f"{indented(turn, 2)}{indented(after, 1)}{SAVE.replace('REST', rest)}"
    )


SCORE = "score = sum(p.sum().item() for p in model.parameters())"
BY_CASE = (
    "match epoch:\n    case 0 | 1:\n        w = 1.0\n    case k if k > 5:\n        w = k\n    case _:\n        w = 0.3"
)
BY_ERROR = "try:\n    w = 1.0 / epoch\nexcept ZeroDivisionError:\n    w = 0.5"
NAMED = f"for p in [t for n in (model.parameters(),) for t in n]:\n    {RATE} 0.1 + 0 * p.data.mul_(0.99).sum().item()"
CONVERTED = {
    "match": looped(f"{BY_CASE}\nloss = w * {MEAN}\n{STEP}"),
    "try": looped(f"{BY_ERROR}\nloss = w * {MEAN}\n{STEP}"),
    "a deque": looped(
        f"{LOSS}\n{STEP}", "last = deque(maxlen=2)", f"{SCORE}\nlast.append(score)\n{RATE} 0.05 * len(last)",
        rest="last",
    ),
    "a defaultdict": looped(f"{LOSS}\n{STEP}\nn['a'] += 1\n{RATE} 0.1 / n['a']", "n = defaultdict(int)", rest="n"),
    "a counter": looped(f"{LOSS}\n{STEP}\nn['a'] += 1\n{RATE} 0.1 / n['a']", "n = Counter()", rest="n"),
    "an ordered dict": looped(f"{LOSS}\n{STEP}", "n = OrderedDict()", f"{SCORE}\nn[epoch] = score", rest="list(n)"),
    "inf": looped(f"{LOSS}\n{STEP}", "low = inf", f"{SCORE}\nlow = min(low, score)", rest="low"),
    "losses by name": looped(f"parts = {{'a': {MEAN}, 'b': model(a).mean()}}\nloss = sum(parts.values())\n{STEP}"),
    "a mean times samples": looped(f"loss = {MEAN} * a.size(0) / 8\n{STEP}"),
    "a setting of the model": looped(f"{LOSS}\n{STEP}", first="model[1].p = min(0.1 * epoch, 0.15)"),
    "a name in two comprehensions": looped(f"{LOSS}\n{STEP}\n{NAMED}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_it_comes_to_the_same(name, tmp_path):
    mended = converted(CONVERTED[name])
    expected = run(CONVERTED[name], tmp_path / "plain")
    assert differs(expected, run(mended, tmp_path / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, tmp_path / "struck", 2, 8)) == 0.0, mended


def test_a_text_says_the_name_that_it_said():
    for said, written in (
        ("{step=}", "step={kept.step!r}"),
        ("{step = :>3d} {step}", "step = {kept.step:>3d} {kept.step}"),
        ("{ step=!s}", " step={kept.step!s}"),
        ("{step==3}", "{kept.step==3}"),
    ):
        source = looped(f"{LOSS}\n{STEP}\nstep += 1\nprint(f'{said}')", "step = 0", rest="step")
        assert f"print(f'{written}')" in converted(source)


def test_and_prints_it(tmp_path):
    source = looped(f"{LOSS}\n{STEP}\nstep += 1", "step = 0", rest="f'{step=} {step = }'")
    assert run(source, tmp_path / "plain")["r"] == "step=15 step = 15"
    assert run(converted(source), tmp_path / "calm")["r"] == "step=15 step = 15"


HALVES = "p, q = model(a).chunk(2)\nloss = p.mean() + 2 * q.mean()"
NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, rows):
        BODY


model = Net()
"""


def of_model(body: str) -> str:
    return looped(f"{LOSS}\n{STEP}", model=NET.replace("BODY", body.replace("\n", "\n        ")))


REFUSED = {
    "a class": (
        looped(f"{LOSS}\n{STEP}\nCfg.n += 1\n{RATE} 0.1 / Cfg.n", "class Cfg:\n    n = 0"),
        "Cfg.n += 1", "`Cfg.n` is of the class itself", "a name of its own in the loop",
    ),
    "the environment": (
        looped(f"{LOSS}\n{STEP}\nos.environ['N'] = os.environ['N'] + '1'\n{RATE} 1 / int(os.environ['N'])"),
        "os.environ['N'] = ", "`os.environ['N']` is this process's alone", "a name of its own in the loop",
    ),
    "a name amid an expression": (
        looped(f"{LOSS}\n{STEP}\nif (n := n + 1) % 5 == 0:\n    {RATE} 0.1 / n", "n = 0"),
        "if (n :=", "given a value amid an expression", "`n = n + 1`",
    ),
    "a name of a case": (
        looped(f"{LOSS}\n{STEP}\nmatch epoch + n:\n    case n:\n        {RATE} 0.1 / (1 + n)", "n = 0"),
        "case n:", "given a value by a `case`", "another name there",
    ),
    "a dict of a function": (
        looped(f"{LOSS}\n{STEP}\nn['a'] += 1\n{RATE} 0.1 / n['a']", "n = defaultdict(lambda: 0)"),
        "n['a'] += 1", "`n` is a defaultdict", "defaultdict(int)",
    ),
    "divided before it is summed": (
        looped(f"w = 1 / len(a)\nloss = (w * (model(a) - b) ** 2).sum()\n{STEP}"),
        "loss = (w", "divided by how many there are, before it is summed", "divide the sum",
    ),
    "a mean that is divided": (
        looped(f"loss = {MEAN} / len(a)\n{STEP}"), "loss = ", "goes by how many samples the batch has", "s.steps",
    ),
    "halves": (looped(f"{HALVES}\n{STEP}"), "chunk(2)", "goes by its place in the batch", "given by the dataset"),
    "one of two, a sum": (
        looped(f"if epoch < 1:\n    {LOSS}\nelse:\n    loss = {SUM}\n{STEP}"),
        f"loss = {SUM}", "a sum in one place, and a mean", "reduction=",
    ),
    "a case, a sum": (
        looped(f"match epoch:\n    case 0:\n        loss = {SUM}\n    case _:\n        {LOSS}\n{STEP}"),
        f"loss = {SUM}", "a sum in one place, and a mean", "reduction=",
    ),
    "an error, a sum": (
        looped(f"try:\n    {LOSS}\nexcept ValueError:\n    loss = {SUM}\n{STEP}"),
        f"loss = {SUM}", "a sum in one place, and a mean", "reduction=",
    ),
    "a model by a size": (
        of_model("n = rows.size(0)\nreturn self.head(rows) * (1.0 if n == 4 else 0.5)"),
        "n == 4", "goes by how many samples", "drop_last=True",
    ),
    "a model that divides by it": (
        of_model("return self.head(rows) / len(rows)"), "/ len(rows)", "goes by how many samples", "drop_last=True",
    ),
    "halves in a model": (
        of_model("p, q = rows.chunk(2)\nreturn self.head(rows) + p.mean()"),
        "chunk(2)", "its place in the batch", "given by the dataset",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_line_and_what_to_write(name):
    source, line, why, do = REFUSED[name]
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert why in error.value.why
    assert line in source.splitlines()[error.value.line - 1]
    assert do in error.value.do


@pytest.mark.parametrize("how", ["parts.append({0})", "parts['a'] = {0}"])
def test_sums_that_are_put_into_something_are_sums(how):
    made, given = ("[]", "parts") if "append" in how else ("{}", "parts.values()")
    source = looped(f"parts = {made}\n{how.format(SUM)}\nloss = sum({given})\n{STEP}")
    assert 'reduction="sum"' in converted(source)
    assert "reduction" not in converted(source.replace(SUM, MEAN)).split("s.step")[0].split("train.session")[1]


@pytest.mark.parametrize(
    "body",
    [
        "n = rows.size(0)\nreturn self.head(rows.view(n, -1))",
        "assert len(rows) > 2\nreturn self.head(rows)",
        "if len(rows) < 2:\n    raise ValueError(rows)\nreturn self.head(rows)",
        "p, q = rows.chunk(2, dim=1)\nreturn self.head(rows) + p.mean(1, keepdim=True)",
        "hidden = torch.zeros(rows.shape[0], 1)\nreturn self.head(rows) + hidden",
        "return self.head(rows) if len(rows) > 0 else rows",
    ],
)
def test_a_model_may_ask_for_the_size_of_what_it_makes(body):
    assert "train.session(" in converted(of_model(body))


def test_views_that_were_put_together_may_be_parted_again():
    views = "p, q = model(torch.cat([a, a + 0.1])).chunk(2)\nloss = F.mse_loss(p, q) + F.mse_loss(p, b)"
    assert "train.session(" in converted(looped(f"{views}\n{STEP}"))


STEPS = f"""def update(a, b):
    opt.zero_grad()
    {LOSS}
    loss.backward()
    opt.step()
    return loss.item()
"""


def test_a_step_amid_an_expression_in_a_block():
    source = looped("with open('rows.txt', 'a') as f:\n    f.write(f'{update(a, b) > 0}')", STEPS)
    with pytest.raises(CannotConvert, match="called amid an expression, within another statement") as error:
        converted(source)
    assert error.value.do == "a line of its own in the loop, before it: `loss = update(a, b)`, and loss in its place"
    assert "train.session(" in converted(
        source.replace("        with open", "        loss = update(a, b)\n        with open").replace(
            "{update(a, b) > 0}", "{loss > 0}"
        )
    )


@pytest.mark.parametrize("made", ["T.Normalize(0.5, 0.5)", "T.Compose([T.Resize(8), T.Normalize(0.5, 0.5)])"])
def test_a_transform_that_draws_nothing_may_be_in_the_loop(made):
    source = looped(f"a = aug(a)\n{LOSS}\n{STEP}", f"aug = {made}")
    source = f"import torchvision.transforms as T\n{source}"
    assert "train.session(" in converted(source)
    with pytest.raises(CannotConvert, match="may draw for the whole batch") as error:
        converted(source.replace(made, f"T.Compose([T.RandomHorizontalFlip(), {made}])"))
    assert "as its transform" in error.value.do
