"""Losses that go by how many samples a batch has, or by the place of one in it: a worker has a part of the batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.cli.work.script.splice import CannotConvert  # noqa: E402
from tests.rigs.converted_runs import converted  # noqa: E402

HEAD = """import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, rows):
        return self.head(rows)


class Two(Net):
    def forward(self, rows):
        return self.head(rows), rows


def weight(n):
    if n == 4:
        return 1.0
    return 0.1


x = torch.rand(18, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model = Net()
two = Two()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SIZE = "the loss goes by how many samples the batch has"
PLACE = "the loss of a sample goes by its place in the batch"
CHOSEN = "the loss is of what is chosen among the samples of a batch"
MSE = "F.mse_loss(model(a), b)"


def script(loss: str, before: str = "pass", head: str = "for a, b in loader:") -> str:
    lines = "".join(f"        {line}\n" for line in before.splitlines())
    return f"""{HEAD}
for epoch in range(3):
    {head}
{lines}        loss = {loss}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("before", "loss", "why"),
    [
        ("w = 1.0 if len(a) == 4 else 0.1", f"w * {MSE}", SIZE),
        ("if len(a) == 4:\n    w = 1.0\nelse:\n    w = 0.1", f"w * {MSE}", SIZE),
        ("w = 0.1\nif a.shape[0] > 2 and epoch:\n    w += 1", f"w * {MSE}", SIZE),
        ("full = a.size(0) == 4", f"{MSE} if full else 0.1 * {MSE}", SIZE),
        ("", f"weight(len(a)) * {MSE}", SIZE),
        ("w = math.sqrt(len(a))", "F.mse_loss(model(a), b, reduction='sum') / w", SIZE),
        ("", "F.mse_loss(model(a), b, reduction='sum') / (len(a) - 1)", SIZE),
        ("n = len(a) // 2 + 1", "F.mse_loss(model(a[:n]), b[:n])", SIZE),
        ("n = 0.5 * len(a)", "F.mse_loss(model(a)[: int(n)], b[: int(n)])", SIZE),
        ("k = min(3, len(a))", "F.mse_loss(model(a[:k]), b[:k])", SIZE),
        ("", "F.mse_loss(model(a)[len(a) // 2], b[len(a) // 2])", SIZE),
        ("", "((model(a) - b) ** 2 * torch.linspace(1, 2, len(a)).unsqueeze(1)).mean()", PLACE),
        ("w = torch.arange(a.size(0))[:, None]", "(w * (model(a) - b) ** 2).mean()", PLACE),
        ("", "((model(a)[-1] - b[-1]) ** 2).mean()", CHOSEN),
        ("out = model(a)", f"{MSE} + 0.1 * out[0].pow(2).mean()", CHOSEN),
    ],
)
def test_what_would_be_another_in_a_part_is_refused(before, loss, why):
    with pytest.raises(CannotConvert) as error:
        converted(script(loss, before or "pass"))
    assert why in error.value.why
    assert error.value.do
    assert error.value.line > 20  # in the loop, or in weight()


def test_the_line_is_that_of_the_condition():
    source = script(f"w * {MSE}", "w = 1.0\nif len(a) < 4:\n    w = 0.1")
    with pytest.raises(CannotConvert) as error:
        converted(source)
    assert source.splitlines()[error.value.line - 1].strip() == "if len(a) < 4:"


@pytest.mark.parametrize(
    ("before", "loss"),
    [
        ("n = len(a)", "F.mse_loss(model(a), b, reduction='sum') / n"),
        ("n = float(len(a))", "F.mse_loss(model(a), b, reduction='sum') / n"),
        ("n = 2 * len(a)", "F.mse_loss(model(a), b, reduction='sum') / n"),
        ("n = len(b)", "F.mse_loss(model(a)[:n], b)"),
        ("if len(a) != len(b):\n    b = b[0]", MSE),
        ("if len(a) > 0:\n    w = 1.0", MSE),
        ("zeros = torch.zeros(len(a), 1)", "F.mse_loss(model(a) + zeros, b)"),
        ("print(len(a) // 2, a[-1], 'short' if len(a) < 4 else 'full')", MSE),
        ("share = len(a) // 2\nfirst = a[0]", MSE),
        ("a = a.view(a.size(0), *a.shape[1:])", MSE),
        ("", "-F.log_softmax(model(a), 1)[torch.arange(len(a)), b[:, 0].long()].mean()"),
        ("", "F.mse_loss(two(a)[0], b)"),
        ("", "F.mse_loss(model(a).view(-1, a[0].shape[0] // 4), b)"),
        ("a, b = (a.to('cpu'), b.to('cpu'))", MSE),
    ],
)
def test_what_is_the_same_at_any_width_is_converted(before, loss):
    after = converted(script(loss, before or "pass"))
    assert "reduction=" not in after.partition("train.session(")[2].partition("\n")[0]


@pytest.mark.parametrize("fields", ["len(batch) == 3", "len(batch) > 2"])
def test_how_many_fields_a_batch_has_is_not_how_many_samples(fields):
    before = f"a, b = batch[0], batch[1]\nif {fields}:\n    b = b + batch[2]"
    assert "train.session(" in converted(script(MSE, before, "for batch in loader:"))


NETWORK = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, rows):
"""


@pytest.mark.parametrize("product", ["self.head(rows) * rows.size(0)", "n * out", "len(rows) * torch.tanh(out)"])
def test_a_product_with_the_size_of_the_batch_in_a_forward_is_refused(product):
    body = f"        n = rows.shape[0]\n        out = self.head(rows)\n        return {product}\n"
    source = script(MSE).replace(f"{NETWORK}        return self.head(rows)\n", NETWORK + body)
    with pytest.raises(CannotConvert, match=SIZE) as error:
        converted(source)
    assert product in source.splitlines()[error.value.line - 1]


@pytest.mark.parametrize(
    "lines",
    [
        "n, wide = rows.shape\nreturn self.head(rows.reshape(n * wide // 4, 4))",
        "n = rows.size(0)\nflat = rows.view(n * rows.size(1))\nreturn self.head(flat.view(n, -1))",
        "n, heads = len(rows), int(2.0)\nreturn self.head(rows.repeat(1, heads).view(n * heads, 4))[:n]",
    ],
)
def test_a_product_of_sizes_that_a_forward_brings_tensors_into_is_not(lines):
    body = "".join(f"        {line}\n" for line in lines.splitlines())
    source = script(MSE).replace(f"{NETWORK}        return self.head(rows)\n", NETWORK + body)
    assert lines.splitlines()[0] in source
    assert "train.session(" in converted(source)


@pytest.mark.parametrize("cut", ["a.split(2)", "torch.split(a, 2)", "a.chunk(2)", "torch.cat([a, a], dim=1).chunk(2)"])
def test_parts_by_the_places_of_samples_are_refused_whatever_was_put_together_elsewhere(cut):
    before = f"one, two = {cut}"
    source = script("F.mse_loss(one, two)", before).replace(
        "x = torch", "z = torch.cat([torch.rand(1), torch.rand(1)])\nx = torch"
    )
    with pytest.raises(CannotConvert, match=PLACE) as error:
        converted(source)
    assert source.splitlines()[error.value.line - 1].strip() == before


@pytest.mark.parametrize(
    "before",
    [
        "one, two = torch.cat([a, a + 1]).split(len(a))",
        "both = torch.cat([a, a + 1])\nout = model(both)\none, two = out.chunk(2)",
        "one, two = a.split(2, dim=1)",
        "one, two = model(a.repeat(2, 1)).chunk(2)",
    ],
)
def test_what_was_put_together_before_may_be_taken_apart(before):
    assert "train.session(" in converted(script("F.mse_loss(one, two)", before))
