"""What is trained may change between two epochs: what was frozen at the start too, over restarts, at any width."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.checkpoint.saving import Saver  # noqa: E402
from sublet.train.data.samples import Samples  # noqa: E402
from sublet.train.link.peers import PeerGroup  # noqa: E402
from sublet.train.numerics.gradients import Gradients  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, flat  # noqa: E402

STEPS = 4  # in an epoch of 50 samples in steps of 16


class Cut(Exception):
    """The run ends here."""


def a_net():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    return model


def thaw(model, epoch):
    """Head alone, then all, then the first layer alone."""
    model[0].requires_grad_(epoch >= 1)
    model[2].requires_grad_(epoch != 2)


def plainly():
    model = a_net()
    optimizer, order, (x, y) = adam(model), Samples(data(), 0, None, None), data().tensors
    for epoch in range(4):
        thaw(model, epoch)
        for indices in order.order(epoch).split(16):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[indices]), y[indices]).backward()
            optimizer.step()
    return flat(model)


def in_a_session(cut=None, when="before", **more):
    model = a_net()
    with train.session(model, adam(model), data(), global_batch=16, epochs=4, **more) as s:
        for epoch in s.epochs():
            if when == "before":
                thaw(model, epoch)
            for x, y in s:
                if s.steps == cut:
                    raise Cut
                s.step(nn.functional.mse_loss(model(x), y))
            if when == "after":
                thaw(model, epoch + 1)
    return flat(model)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_frozen_at_the_start_is_trained_once_it_is_thawed_as_in_a_plain_loop(when):
    assert torch.equal(in_a_session(when=when), plainly())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", [STEPS + 1, 2 * STEPS, 2 * STEPS + 3])
def test_a_start_that_goes_on_has_frozen_what_was_frozen(tmp_path, monkeypatch, cut, when):
    """Where it is done after the batches, no line of the script says it again."""
    at_every_step = lambda saver, _, tree, progress, world, **__: saver.save(tree(), progress, world)  # noqa: E731
    monkeypatch.setattr(Saver, "tick", at_every_step)
    with pytest.raises(Cut):
        in_a_session(cut, when, checkpoint_dir=tmp_path)
    assert torch.equal(in_a_session(None, when, checkpoint_dir=tmp_path), plainly())


def test_within_an_epoch_it_is_refused_in_words():
    model = a_net()

    def run():
        with train.session(model, adam(model), data(), global_batch=16, epochs=1) as s:
            for x, y in s:
                model[0].requires_grad_(s.steps == 2)
                s.step(nn.functional.mse_loss(model(x), y))

    with pytest.raises(InvalidValue, match="2 parameters were frozen then"):
        run()


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_are_those_of_what_is_trained_and_nothing_is_left_in_the_others(shared):
    model = a_net()
    gradients = Gradients(model.parameters())
    if shared:
        gradients.attach()
    assert not gradients.refit()
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    assert gradients.refit()
    assert gradients.shared == shared
    assert [id(each) for each in gradients.parameters] == [id(each) for each in model[0].parameters()]
    assert all(each.grad is None for each in model[2].parameters())
    assert sum(len(bucket.parameters) for bucket in gradients.buckets) == 2 * shared
    gradients.arm(PeerGroup())
    model(torch.ones(3, FEATURES)).sum().backward()
    assert all(each.grad.abs().sum() > 0 for each in model[0].parameters())
