"""Losses drawn from a grammar: one that is called a sum, or a mean, is that over the parts of any cut of its batch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sublet.cli.work.script.effects import Effects  # noqa: E402
from sublet.cli.work.script.grades import WHY, Grade  # noqa: E402
from sublet.cli.work.script.losses import loss_of  # noqa: E402
from sublet.cli.work.script.reading import Script  # noqa: E402
from tests.rigs.sizes import examples  # noqa: E402

HEAD = """import torch
import torch.nn.functional as F
from torch import nn

summed, mean, each = nn.MSELoss(reduction="sum"), nn.MSELoss(), nn.MSELoss(reduction="none")
weighed = nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 2.0]).double())


def of(p, q):
    d = (p - q).pow(2)
    return d.sum()


def average(p, q):
    total = of(p, q)
    total /= len(p)
    return total


def root(p, q):
    return torch.sqrt(mean(p, q))


for a, b in loader:
    out = model(a)
    keep = b[:, 0] > 1
    label = keep.long()
"""
ROWS = ["out", "b", "each(out, b)", "(out - b).abs()", "(out * b)", "F.relu(out)", "out.pow(2).sum(1)", "a.mean(1)"]
LOSSES = ["F.mse_loss(out, b)", "F.mse_loss(out, b, reduction='sum')", "summed(out, b)", "mean(out, b)", "of(out, b)"]
LOSSES += ["average(out, b)", "F.l1_loss(out, b, size_average=False)"]
ROWS += ["out[keep]", "(out * b)[keep]", "(out * keep.unsqueeze(1))", "out[:2]", "(out @ b.T)", "out.mm(b.t())"]
ROWS += [
    "(out[:, None] - b[None, :]).abs()",
    "(out - out.mean(0)).pow(2)",
    "F.log_softmax(out, dim=1)",
    "out.max(1)[0]",
]
ROWS += ["each(out, b).mean(1).topk(2)[0]", "F.softmax(out, dim=0)", "out.index_select(0, keep.nonzero().flatten())"]
ROWS += [
    "torch.einsum('id,jd->ij', out, b)",
    "torch.einsum('id,id->i', out, b)",
    "(b[:, 1:] * out[:, 1:])",
    "(out.roll(1, 0) * b)",
]
LOSSES += ["F.mse_loss(out[keep], b[keep])", "F.mse_loss(out[keep], b[keep], reduction='sum')", "root(out, b)"]
LOSSES += ["F.cross_entropy(out @ b.T, torch.arange(len(a)))", "F.cross_entropy(out, label)", "weighed(out, label)"]
LOSSES += [
    "F.cross_entropy(out, label, ignore_index=0)",
    "F.cross_entropy(out, label, reduction='sum', ignore_index=0)",
]
LOSSES += [
    "F.cross_entropy(out, label, weight=w[0].detach())",
    "F.cross_entropy(out, label, w[0].detach())",
    "out.norm()",
]
LOSSES += [
    "((each(out, b).mean(1) * keep).sum() / keep.sum())",
    "(each(out, b).sum() / (1 + len(out[keep])))",
    "out.max()",
]
LOSSES += [
    "(b.mean() * out).mean()",
    "F.mse_loss(out.mean(0), b.mean(0))",
    "(b.sum().item() * out).mean()",
    "torch.cdist(out, b).mean()",
]
ROWS += ["out[: len(a) // 2 + 1]", "(out * b)[-1]", "(out * torch.linspace(1, 2, len(a)).unsqueeze(1))"]
ROWS += ["out[: len(b)]", "(out * torch.arange(a.shape[0])[:, None])", "(out + torch.zeros(len(a), 3))"]
ROWS += ["(out * torch.full_like(b, 1 / len(b)))", "(out * torch.full((len(a), 3), 2.0))", "(b[0] * out)"]
ROWS += [
    "out.chunk(2)[0]",
    "out.chunk(2, dim=1)[0]",
    "torch.chunk(out, 2)[-1]",
    "(out / len(a))",
    "(out * (1 / len(a)))",
]
LOSSES += [
    "(F.mse_loss(out, b) * len(a))",
    "sum({'a': F.mse_loss(out, b), 'b': 0.5 * out.mean()}.values())",
    "sum({'a': F.mse_loss(out, b, reduction='sum'), 'b': out.mean()}.values())",
]
CURVES = [
    "torch.sqrt({0}.abs())",
    "({0}) ** 2",
    "{0}.pow(2)",
    "torch.exp({0})",
    "({0} * {0})",
    "(1 / {0})",
    "({0}.item() * {0})",
]
NUMBERS = ["0.5", "3", "2.0"]
SIZES = ["(1.0 if len(a) == 3 else 0.1)", "len(a) ** 0.5", "(0.5 if len(a) > 0 else 2)", "(len(a) // 2 + 1)"]
DIVISORS = ["len(a)", "a.shape[0]", "b.size(0)", "b.sum()", "float(len(a))", "(2 * len(a))", "(len(a) + 1)"]
SHARES = ["(1 / len(a))", "(2.0 / b.shape[0])", "(1 / a.size(1))", "(1 / b.shape[1])"]
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
            st.tuples(st.sampled_from([*NUMBERS, *SHARES, *SIZES]), inner).map(lambda each: f"({each[0]} * {each[1]})"),
            st.tuples(inner, st.sampled_from([*NUMBERS, *DIVISORS])).map(lambda each: f"({each[0]} / {each[1]})"),
            inner.map(lambda each: f"(-{each})"),
            st.tuples(st.sampled_from(CURVES), inner).map(lambda each: each[0].format(f"torch.as_tensor({each[1]})")),
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


def graded(text):
    """As the text has it."""
    source = f"{HEAD}    loss = {text}\n    loss.backward()\n"
    script = Script(Path("train.py"), source)
    loop = next(node for node in script.tree.body if isinstance(node, ast.For))
    (loss,) = (each.value.func.value for each in loop.body if isinstance(each, ast.Expr))
    return loss_of(Effects(script), loop, [loss])


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(text=_scalars(), size=st.integers(2, 6), cut=st.integers(1, 5))
@settings(max_examples=examples(400), deadline=None)
def test_a_loss_adds_up_over_the_parts_of_a_batch_as_it_is_said_to(text, size, cut):
    found = graded(text)
    drawn = torch.Generator().manual_seed(size)
    a, b, w = (torch.rand(rows, 3, generator=drawn, dtype=torch.double) + 0.5 for rows in (size, size, 1))
    at = min(cut, size - 1)
    if found.grade in (Grade.SUM, Grade.MEAN):  # `topk(2)` of a part of one sample is an error, and no such loss
        whole = gradient_of(text, a, b, w)
        parts = [gradient_of(text, a[:at], b[:at], w), gradient_of(text, a[at:], b[at:], w)]
    shares = [at / size, 1 - at / size]
    if found.grade is Grade.SUM:
        assert torch.allclose(whole, parts[0] + parts[1]), text
    elif found.grade is Grade.MEAN:
        assert torch.allclose(whole, shares[0] * parts[0] + shares[1] * parts[1]), text
    elif found.grade is Grade.ODD:
        assert found.sums, text  # which is why nobody is told a reduction
    elif found.grade in WHY:
        assert found.odd is not None, text
        line, why, do = found.odd
        assert line > 1
        assert why
        assert do


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("F.mse_loss(out[keep], b[keep])", Grade.PARTIAL),
        ("F.cross_entropy(out, label, ignore_index=-100)", Grade.PARTIAL),
        ("F.cross_entropy(F.normalize(out) @ F.normalize(b).t() / 0.1, torch.arange(len(a)))", Grade.PAIRED),
        ("F.cosine_similarity(out.unsqueeze(1), b.unsqueeze(0), dim=2).mean()", Grade.PAIRED),
        ("root(out, b)", Grade.CURVED),
        ("(1 / len(a) * each(out, b)).sum()", Grade.DIVIDED),
        ("torch.mul(each(out, b), 1 / a.shape[0]).sum()", Grade.DIVIDED),
        ("mean(out, b) + w.pow(2).sum() / len(a)", Grade.ODD),
        ("summed(out, b) * (1 / len(a))", Grade.MEAN),
        ("summed(out, b) / a.shape[1]", Grade.SUM),
        ("(each(out, b).sum(1) * (1 / a.size(1))).mean()", Grade.MEAN),
        ("(mean(out, b) - 0.1).abs() + 0.1", Grade.CURVED),
        ("weighed(out, label)", Grade.WEIGHED),
        ("each(out, b).mean(1).topk(2)[0].mean()", Grade.CHOSEN),
        ("weighed(out, label) + mean(out, b)", Grade.WEIGHED),
        ("(out * b).sum() / b.sum()", Grade.QUOTIENT),
        ("1 - (out * b).sum() / torch.clamp(b.sum() + 1, min=1)", Grade.QUOTIENT),
        ("F.cross_entropy(out * torch.autograd.grad(mean(out, b), a)[0], label)", Grade.SLOPE),
        ("torch.autograd.grad(mean(out, b), w)[0].pow(2).sum()", Grade.CURVED),
        ("mean(out / out.sum(), b)", Grade.PAIRED),
        ("mean(out, b) * torch.bincount(label).max()", Grade.PAIRED),
        ("mean(out, b) * (1.0 if len(a) == 4 else 0.1)", Grade.SIZED),
        ("mean(out[: len(a) // 2], b[: len(a) // 2])", Grade.SIZED),
        ("summed(out, b) / (len(a) - 1)", Grade.SIZED),
        ("(out * torch.linspace(1, 2, len(a)).unsqueeze(1)).mean()", Grade.PLACES),
        ("(out * b)[-1].mean()", Grade.CHOSEN),
        # what everybody has stays a mean
        ("summed(out, b) / float(2 * len(a))", Grade.MEAN),
        ("mean(out * torch.autograd.grad(mean(out, b), a)[0].sign(), b)", Grade.MEAN),
        ("mean(out * torch.autograd.grad(out.sum(), a, create_graph=True)[0], b)", Grade.MEAN),
        ("F.cross_entropy(out.transpose(1, 2), label, label_smoothing=0.1)", Grade.MEAN),
        ("F.binary_cross_entropy_with_logits(out, b, weight=w, pos_weight=w)", Grade.MEAN),
        ("F.ctc_loss(F.log_softmax(out, 2).permute(1, 0, 2), label, n, m)", Grade.MEAN),
        ("0.5 * F.cross_entropy(out[:, -1], label).float() + 0.1 * out.pow(2).mean()", Grade.MEAN),
        ("(-out[torch.arange(len(a)), label]).mean()", Grade.MEAN),
        ("torch.stack([mean(out, b), F.l1_loss(out, b)]).sum()", Grade.MEAN),
        ("(out.norm(dim=1) - 1).pow(2).mean()", Grade.MEAN),
        ("(F.cross_entropy(out, label, reduction='none') * table[label]).mean()", Grade.MEAN),
        ("torch.bmm(out.unsqueeze(1), b.unsqueeze(2)).mean()", Grade.MEAN),
        ("-torch.min(out * b, out.clamp(0.8, 1.2) * b).mean()", Grade.MEAN),
        ("torch.exp(-s) * mean(out, b) + s", Grade.MEAN),
    ],
)
def test_what_a_loss_is_called(text, grade):
    assert graded(text).grade is grade
