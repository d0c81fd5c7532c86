"""Which optimizers can be cut anywhere: their own steps tell."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.numerics.elementwise import check_elementwise, kept_by  # noqa: E402


class ByNorm(torch.optim.SGD):
    """Divides by the norm of a parameter's gradient, as LARS and LAMB do; keeps a moment of its shape."""

    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                each.grad.div_(each.grad.norm())
        return super().step(closure)


def parameters():
    return [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(4))]


@pytest.mark.parametrize(
    ("make", "moments", "counters"),
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"], ["step"]),
        (lambda p: torch.optim.AdamW(p, fused=True), ["exp_avg", "exp_avg_sq"], ["step"]),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2), ["momentum_buffer"], []),
        (lambda p: torch.optim.SGD(p, lr=0.1), [], []),
        (torch.optim.NAdam, ["exp_avg", "exp_avg_sq"], ["mu_product", "step"]),
        (lambda p: torch.optim.RMSprop(p, centered=True), ["grad_avg", "square_avg"], ["step"]),
        (torch.optim.Rprop, ["prev", "step_size"], ["step"]),
    ],
    ids=["adam", "fused", "momentum", "sgd", "nadam", "rmsprop", "rprop"],
)
def test_those_that_work_on_each_number_by_itself_are_taken(make, moments, counters):
    optimizer = make(parameters())
    check_elementwise(optimizer)
    kept = kept_by(optimizer, 0)
    assert [name for name, _ in kept.moments] == moments
    assert [name for name, _, _ in kept.counters] == counters


@pytest.mark.parametrize(
    "make",
    [
        lambda p: ByNorm(p, lr=0.1, momentum=0.9),
        torch.optim.Adafactor,
        lambda p: torch.optim.Muon(p[:1]),
        torch.optim.LBFGS,
    ],
    ids=["by norm", "adafactor", "muon", "lbfgs"],
)
def test_others_are_refused_in_words(make):
    with pytest.raises(InvalidValue, match=r"works on each number by itself|made of"):
        check_elementwise(make(parameters()))
