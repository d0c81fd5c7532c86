"""Names that functions, lambdas and comprehensions have of their own, and those of the loop that they read."""

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
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SAVE = 'torch.save(model.state_dict(), "model.pt")\n'


def looped(before: str, loss: str = "F.mse_loss(model(a), b)", after: str = "") -> str:
    return f"""{HEAD}{before}
for epoch in range(3):
    for a, b in loader:
        opt.zero_grad()
        loss = {loss}
        loss.backward()
        opt.step()
{after}{SAVE}"""


def same(source: str, folder) -> str:
    mended = converted(source)
    expected = run(source, folder / "plain")
    assert differs(expected, run(mended, folder / "calm")) == 0.0, mended
    assert differs(expected, run_struck(mended, folder / "struck", 3, 9)) == 0.0, mended
    return mended


SOFTER = "    tau *= 0.8\n"


@pytest.mark.parametrize("where", ["soft = lambda t: t / tau", "def soft(t):\n    return t / tau\nsoft(x)"])
def test_what_is_remembered_is_not_read_by_what_was_written_before_it_was_kept(where):
    with pytest.raises(CannotConvert, match="`tau` is remembered from turn to turn, and used in"):
        converted(looped(f"tau = 1.0\n{where}\n", "F.mse_loss(soft(model(a)), b)", SOFTER))


def test_a_lambda_has_arguments_of_its_own_and_defaults_from_before(tmp_path):
    before = "tau = 1.0\nsoft = lambda t, tau=tau: t / tau\n"
    after = f"{SOFTER}    opt.param_groups[0]['lr'] = 0.1 * tau + 0 * max([1, 2], key=lambda tau: -tau)\n"
    assert "key=lambda tau: -tau" in same(looped(before, "F.mse_loss(soft(model(a)), b)", after), tmp_path)


@pytest.mark.parametrize("own", ["sum(tau for tau in (0.5, 0.25))", "sum({tau: tau for tau in (1, 2)})"])
def test_a_comprehension_has_names_of_its_own(own, tmp_path):
    after = f"{SOFTER}    opt.param_groups[0]['lr'] = 0.1 * tau + 0.01 * {own}\n"
    assert own in same(looped("tau = 1.0\n", after=after), tmp_path)


def test_a_comprehension_goes_over_what_is_kept(tmp_path):
    after = "    rates = [0.5 * rates for rates in rates]\n    opt.param_groups[0]['lr'] = rates[0]\n"
    assert "for rates in kept.rates]" in same(looped("rates = [0.1, 0.2]\n", after=after), tmp_path)


WEIGHED = "F.mse_loss(model(a), b) * weight()"
READERS = {
    "a function": "def weight():\n    return 0.5**epoch\n",
    "a lambda": "weight = lambda: 0.5**epoch\n",
    "a method": "class Weight:\n    def __call__(self):\n        return 0.5**epoch\n\n\nweight = Weight()\n",
}


@pytest.mark.parametrize("name", READERS)
def test_epochs_are_counted_for_whoever_reads_their_number(name, tmp_path):
    assert "for epoch in s.epochs():" in same(looped(READERS[name], WEIGHED), tmp_path)


def test_they_are_not_counted_for_a_name_of_another(tmp_path):
    other = "def weight(epoch=2):\n    return sum(0.5**epoch for epoch in range(epoch))\n"
    assert "epochs()" not in same(looped(other, WEIGHED), tmp_path)


def test_an_epoch_that_is_read_in_a_closure_is_counted(tmp_path):
    head, loop = looped(READERS["a function"], WEIGHED).replace(SAVE, "").split("def weight")
    body = "".join(f"    {line}" for line in f"def weight{loop}".splitlines(keepends=True))
    assert "for epoch in s.epochs():" in same(f"{head}def main():\n{body}\n\nmain()\n{SAVE}", tmp_path)


COUNTS = "def weight({}):\n    cache['n'] += 1\n    return 1 / (1 + 0.1 * cache['n'])\n"
DECORATED = """def counted(f):
    n = 0

    def g():
        nonlocal n
        n += 1
        return f() / n

    return g


@counted
def weight():
    return 2.0
"""


IN_A_DICT = DECORATED.replace("    n = 0", "    n = {'n': 0}").replace("        nonlocal n\n", "")
IN_A_DICT = IN_A_DICT.replace("n += 1", "n['n'] += 1").replace("f() / n", "f() / n['n']")
CACHED = "from functools import lru_cache\n\n@lru_cache(None)\ndef weight():\n    return model.weight.detach().mean()\n"


@pytest.mark.parametrize(
    "before",
    [
        COUNTS.format("cache={'n': 0}"),
        "seen = {'n': 0}\n" + COUNTS.format("*, cache=seen"),
        DECORATED,
        IN_A_DICT,
        CACHED,
        CACHED.replace("lru_cache(None)", "functools.cache").replace(
            "from functools import lru_cache", "import functools"
        ),
        CACHED.replace("model.weight.detach().mean()", "torch.rand(()).item()"),
    ],
)
def test_what_a_function_remembers_by_itself_is_lost(before):
    with pytest.raises(CannotConvert, match=r"weight\(\) remembers"):
        converted(looped(before, WEIGHED))


def test_a_cache_of_what_follows_from_arguments_and_a_decorator_that_measures_are_no_memory(tmp_path):
    same(
        looped(CACHED.replace("weight():", "weight(n=2):").replace("model.weight.detach().mean()", "1 / n"), WEIGHED),
        tmp_path,
    )
    timed = IN_A_DICT.replace("f() / n['n']", "f()").replace("n['n'] += 1", "n['s'] = time.time()")
    same(looped("import time\n" + timed, WEIGHED), tmp_path / "timed")


@pytest.mark.parametrize("line", ["globals()['tau'] = tau * 0.8", "vars().update(tau=tau * 0.8)"])
def test_a_name_that_is_given_a_value_by_no_name_is_refused(line):
    source = looped("tau = 1.0\n", "tau * F.mse_loss(model(a), b)", f"    {line}\n")
    with pytest.raises(CannotConvert, match=r"\(\) gives a name a value") as error:
        converted(source)
    assert source.splitlines()[error.value.line - 1].strip() == line


def test_a_default_that_nobody_changes_or_uses_is_no_memory(tmp_path):
    before = "def weight(cache={'n': 2}):\n    return 1 / cache['n']\n"
    same(looped(before, WEIGHED), tmp_path)
    given = COUNTS.format("cache={'n': 0}")
    same(looped(given, WEIGHED.replace("weight()", "weight({'n': 1})")), tmp_path / "given")
