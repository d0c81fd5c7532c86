"""Losses drawn from a grammar: one that is called a sum, or a mean, is that over the parts of any cut of its batch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sublet.cli.work.script.effects import Effects  # noqa: E402
from sublet.cli.work.script.losses import Grade, loss_of  # noqa: E402
from sublet.cli.work.script.reading import Script  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402

HEAD = """import torch
import torch.nn.functional as F
from torch import nn

summed, mean, each = nn.MSELoss(reduction="sum"), nn.MSELoss(), nn.MSELoss(reduction="none")


def of(p, q):
    d = (p - q).pow(2)
    return d.sum()


def average(p, q):
    total = of(p, q)
    total /= len(p)
    return total


for a, b in loader:
    out = model(a)
"""
ROWS = ["out", "b", "each(out, b)", "(out - b).abs()", "(out * b)", "F.relu(out)", "out.pow(2).sum(1)", "a.mean(1)"]
LOSSES = ["F.mse_loss(out, b)", "F.mse_loss(out, b, reduction='sum')", "summed(out, b)", "mean(out, b)", "of(out, b)"]
LOSSES += ["average(out, b)", "F.l1_loss(out, b, size_average=False)"]
NUMBERS = ["0.5", "3", "2.0"]
WEIGHTS = ["w.pow(2).sum()", "sum(p.abs().sum() for p in weights)"]


def _scalars() -> st.SearchStrategy[str]:
    rows = st.sampled_from(ROWS)
    first = st.one_of(
        rows.map(lambda row: f"{row}.sum()"),
        rows.map(lambda row: f"torch.sum({row})"),
        rows.map(lambda row: f"{row}.mean()"),
        rows.map(lambda row: f"torch.mean({row})"),
        st.sampled_from(
            [*LOSSES, *WEIGHTS, *NUMBERS],
        ),
    )
    return st.recursive(
        first,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-"), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
            st.tuples(st.sampled_from(NUMBERS), inner).map(lambda each: f"({each[0]} * {each[1]})"),
            st.tuples(inner, st.sampled_from([*NUMBERS, "len(a)", "a.shape[0]", "b.size(0)", "b.sum()"])).map(
                lambda each: f"({each[0]} / {each[1]})"
            ),
            inner.map(lambda each: f"(-{each})"),
        ),
        max_leaves=3,
    )


def gradient_of(text, a, b, w):
    """By the weights: what is written down has none."""
    w = w.clone().requires_grad_()
    space = {"model": lambda rows: rows * w, "w": w, "weights": [w, 2 * w], "loader": [(a, b)]}
    exec(compile(f"{HEAD}    loss = 1.0 * {text}\n", "loss", "exec"), space)  # noqa: S102 - drawn above
    loss = torch.as_tensor(space["loss"]).double()
    return torch.autograd.grad(loss, w)[0] if loss.requires_grad else torch.zeros_like(w)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(text=_scalars(), size=st.integers(2, 6), cut=st.integers(1, 5))
@settings(max_examples=examples(400), deadline=None)
def test_a_loss_adds_up_over_the_parts_of_a_batch_as_it_is_said_to(text, size, cut):
    source = f"{HEAD}    loss = {text}\n    loss.backward()\n"
    script = Script(Path("train.py"), source)
    loop = next(node for node in script.tree.body if isinstance(node, ast.For))
    (loss,) = (each.value.func.value for each in loop.body if isinstance(each, ast.Expr))
    found = loss_of(Effects(script), loop, [loss])
    drawn = torch.Generator().manual_seed(size)
    a, b, w = (torch.rand(rows, 3, generator=drawn, dtype=torch.double) + 0.5 for rows in (size, size, 1))
    whole = gradient_of(text, a, b, w)
    at = min(cut, size - 1)
    parts = [gradient_of(text, a[:at], b[:at], w), gradient_of(text, a[at:], b[at:], w)]
    shares = [at / size, 1 - at / size]
    if found.grade is Grade.SUM:
        assert torch.allclose(whole, parts[0] + parts[1]), text
    elif found.grade is Grade.MEAN:
        assert torch.allclose(whole, shares[0] * parts[0] + shares[1] * parts[1]), text
    elif found.grade is Grade.ODD:
        assert found.sums, text  # which is why nobody is told a reduction
