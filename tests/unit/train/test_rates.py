"""By what the learning rate is multiplied at another batch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.numerics.noise import (  # noqa: E402
    BatchRange,
    RateRule,
    rate_rule,
)

BATCHES = BatchRange(initial=16, low=4, high=1024)


@pytest.mark.parametrize(
    ("rule", "rooted", "wanted"),
    [
        ("adascale", False, (48 / 16 + 1) / (48 / 64 + 1)),
        ("adascale", True, ((48 / 16 + 1) / (48 / 64 + 1)) ** 0.5),
        ("sqrt", False, 2.0),
        ("sqrt", True, 2.0),
        ("linear", False, 4.0),
        ("linear", True, 4.0),
        ("none", False, 1.0),
    ],
)
def test_each_rule_multiplies_by_its_own_factor_at_four_times_the_batch(rule, rooted, wanted):
    assert rate_rule(rule).factor(BATCHES, 64, 48.0, rooted=rooted) == pytest.approx(wanted)


@pytest.mark.parametrize("rule", RateRule)
@pytest.mark.parametrize("rooted", [False, True])
def test_at_the_initial_batch_it_stays_and_a_smaller_one_never_raises_it(rule, rooted):
    assert rule.factor(BATCHES, 16, 48.0, rooted=rooted) == 1.0
    assert rule.factor(BATCHES, 4, 48.0, rooted=rooted) <= 1.0


def test_a_rule_that_nobody_knows_is_refused():
    with pytest.raises(InvalidValue, match=r"lr_rule.*adascale, sqrt, linear, none"):
        rate_rule("cubic")


class Bowl(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(50))

    def forward(self, c):
        return 0.5 * ((self.w - c) ** 2).sum(1).mean()


def run(samples, optimizer=torch.optim.SGD, **more):
    bowl, rates, sizes = Bowl(), [], []
    sgd = optimizer(bowl.parameters(), lr=0.5)
    sgd.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    with train.session(bowl, sgd, TensorDataset(samples), global_batch=16, batch_range=(16, 64), **more) as s:
        for (c,) in s.batches(epochs=1):
            sizes.append(len(c))
            s.step(bowl(c))
    return s, rates, sizes, sgd


@pytest.mark.parametrize(("rule", "rate"), [("sqrt", 1.0), ("linear", 2.0), ("none", 0.5)])
def test_a_session_updates_by_the_rule_that_it_was_given(rule, rate, monkeypatch):
    monkeypatch.setattr("sublet.train.sessions.steps.Steps.obey", obey_once)
    _, rates, _, sgd = run(torch.randn(256, 50, generator=torch.Generator().manual_seed(0)), lr_rule=rule)
    assert rates == [rate] * 4
    assert sgd.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(("optimizer", "rooted"), [(torch.optim.SGD, False), (torch.optim.AdamW, True)])
def test_a_session_multiplies_by_the_gain_and_for_adam_by_its_root(optimizer, rooted, monkeypatch):
    monkeypatch.setattr("sublet.train.sessions.steps.Steps.obey", obey_once)
    monkeypatch.setattr("sublet.train.numerics.noise.Noise.scale", 48.0)
    gain = (48 / 16 + 1) / (48 / 64 + 1)
    _, rates, _, _ = run(torch.randn(128, 50, generator=torch.Generator().manual_seed(0)), optimizer)
    assert rates == [pytest.approx(0.5 * (gain**0.5 if rooted else gain))] * 2


@pytest.mark.parametrize(("over", "last"), [(1, 0.5), (16, 0.5), (36, 0.75)])
def test_the_last_step_of_an_epoch_is_updated_at_the_rate_of_its_own_size(over, last, monkeypatch):
    """A rate for 64 samples would throw it far off, where one of them is left over; that of 16 is the owner's word."""
    monkeypatch.setattr("sublet.train.sessions.steps.Steps.obey", obey_once)
    _, rates, _, _ = run(torch.randn(128 + over, 50, generator=torch.Generator().manual_seed(0)), lr_rule="sqrt")
    assert rates == [1.0, 1.0, last]


def test_one_worker_without_micro_batches_learns_the_noise_from_a_few_steps_in_halves(monkeypatch):
    monkeypatch.setattr("sublet.train.sessions.steps.Steps.obey", obey_once)
    monkeypatch.setattr("sublet.train.numerics.noise.HALVES_EVERY", 2)  # so that a short training is long enough
    s, _, sizes, _ = run(torch.randn(16_384, 50, generator=torch.Generator().manual_seed(0)), lr_rule="none")
    assert sum(sizes) == 16_384  # each once
    assert set(sizes) == {64, 32}
    assert sizes.index(64) == 2  # two halves first
    assert s.noise is not None
    times = s._strategy.steps.watch.take()
    assert (times.pieces, times.samples) == (1, 64)  # what steps take is told of whole ones


def obey_once(steps, batch):
    """As a plan that names 64: the entry into a group of one without a controller leaves the batch to the script."""
    steps.grows, steps.progress.batch = False, 64
