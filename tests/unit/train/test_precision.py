"""Scaled losses, clipped values and summed losses: in a session as in a plain loop of PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from tests.rigs.little_network import FEATURES, data, flat  # noqa: E402

STEPS = 12
OVERFLOWS = 4  # the step whose loss does


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


def scaled_loss(model, batch, step):
    x, y = batch
    return F.mse_loss(model(x), y) * (float("inf") if step == OVERFLOWS else 1.0)


def batches(steps):
    model = nn.Linear(1, 1)
    with train.session(model, torch.optim.SGD(model.parameters(), 0.0), data(), global_batch=16, steps=steps) as s:
        for batch in s:
            yield batch
            s.step(model.weight.sum() * 0.0)


def plainly(loss_of, *, scaler=None, clip=lambda parameters: None):
    """A loop as people write it."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, batch in enumerate(batches(STEPS)):
        optimizer.zero_grad()
        loss = loss_of(model, batch, step)
        if scaler is None:
            loss.backward()
            clip(model.parameters())
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip(model.parameters())
            scaler.step(optimizer)
            scaler.update()
    return flat(model)


def in_a_session(loss_of, *, until=STEPS, **more):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with train.session(model, optimizer, data(), global_batch=16, steps=until, **more) as s:
        for batch in s:
            s.step(loss_of(model, batch, s.steps))
    return flat(model)


def test_a_scaler_scales_unscales_and_leaves_out_what_overflows_as_in_a_plain_loop():
    plain, ours = scaler(), scaler()
    expected = plainly(scaled_loss, scaler=plain)
    assert torch.equal(in_a_session(scaled_loss, scaler=ours), expected)
    assert ours.get_scale() == plain.get_scale()
    assert plain.get_scale() != 2.0**10  # it grew, and was halved
    assert torch.isfinite(expected).all()


def test_the_scale_is_part_of_the_state(tmp_path):
    plain, ours = scaler(), scaler()
    expected = plainly(scaled_loss, scaler=plain)
    in_a_session(scaled_loss, until=OVERFLOWS + 2, scaler=scaler(), checkpoint_dir=tmp_path)
    assert torch.equal(in_a_session(scaled_loss, scaler=ours, checkpoint_dir=tmp_path), expected)
    assert ours.state_dict() == plain.state_dict()  # weights alone say little: scales are powers of two


def test_noise_is_measured_as_if_nothing_were_scaled():
    def loss_of(model, batch, _):
        x, y = batch
        return F.mse_loss(model(x), y)

    def noise(**more):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        with train.session(model, optimizer, data(), global_batch=16, steps=800, micro_batch=4, **more) as s:
            for batch in s:
                s.step(loss_of(model, batch, 0))
        return s.noise

    plain = noise()
    assert plain is not None
    assert noise(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)) == pytest.approx(
        plain, rel=1e-3
    )


def test_values_are_clipped_as_in_a_plain_loop():
    def loss_of(model, batch, _):
        x, y = batch
        return 50.0 * F.mse_loss(model(x), y)

    clip = lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1)  # noqa: E731 - one word
    expected = plainly(loss_of, clip=clip)
    assert torch.equal(in_a_session(loss_of, clip_value=0.1), expected)
    assert not torch.equal(expected, plainly(loss_of))


def summed_loss(model, batch, _):
    x, y = batch
    return F.mse_loss(model(x), y, reduction="sum")


@pytest.mark.parametrize("micro_batch", [None, 3], ids=["at once", "in parts"])
def test_a_summed_loss_is_summed_over_the_global_batch(micro_batch):
    expected = plainly(summed_loss)
    found = in_a_session(summed_loss, reduction="sum", micro_batch=micro_batch)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"reduction": "max"}, "'mean' or 'sum'"),
        ({"reduction": "sum", "batch_range": (8, 32)}, "a sum grows with the batch"),
        ({"scaler": object()}, r"torch\.amp\.GradScaler"),
        ({"clip_value": 0.0}, "clip_value"),
    ],
    ids=["a word", "a sum that grows", "no scaler", "no room"],
)
def test_what_cannot_be_meant_is_refused(more, why):
    model = network()
    with pytest.raises(InvalidValue, match=why):
        train.session(model, torch.optim.SGD(model.parameters(), 0.1), data(), global_batch=16, **more)
