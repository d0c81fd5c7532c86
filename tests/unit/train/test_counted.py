"""Losses that are sums over what differs from sample to sample, such as tokens: the step is by the mean over all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.errors import InvalidValue  # noqa: E402
from sublet.train.data.samples import MicroBatch, Samples  # noqa: E402
from tests.rigs.little_network import adam, data, flat, loss_of, network  # noqa: E402


def summed(model, batch):
    """A sum over the samples whose first number is positive, and how many these are."""
    x, y = batch
    counts = x[:, 0] > 0
    return ((model(x) - y)[counts] ** 2).sum(), int(counts.sum())


def in_plain_torch(steps):
    """Whole batches, in the session's order."""
    model, other, seen = network().eval(), network(), []
    optimizer = adam(model)
    with train.session(other, adam(other), data(), global_batch=16, steps=steps) as s:
        for batch in s:
            seen.append(batch)
            s.step(loss_of(other, batch))
    for batch in seen:
        loss, count = summed(model, batch)
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    return flat(model), float(loss.detach() / count)


@pytest.mark.parametrize("micro_batch", [None, 5, 1])
def test_the_step_is_by_the_mean_over_all_that_was_counted(micro_batch):
    model = network().eval()  # dropout would draw for each micro-batch
    options = {"global_batch": 16, "steps": 6, "reduction": "counted", "micro_batch": micro_batch}
    with train.session(model, adam(model), data(), **options) as s:
        for batch in s:
            loss, count = summed(model, batch)  # of a single sample it may be none
            s.step(loss, counted=count)
    expected, last = in_plain_torch(6)
    torch.testing.assert_close(flat(model), expected, rtol=1e-4, atol=1e-5)
    assert s.loss == pytest.approx(last, rel=1e-4)


@pytest.mark.parametrize(("many", "left_out"), [(12, 0), (24, 1)])
def test_a_sum_over_many_is_scaled_as_a_mean_would_be(many, left_out):
    """A mean times the scale is finite, a sum is not. How many there are is known after a step; many are expected."""
    model, scaler = network().eval(), torch.amp.GradScaler("cpu", init_scale=2.0**122)
    options = {"global_batch": 16, "steps": 6, "reduction": "counted", "scaler": scaler, "micro_batch": 5}
    tokens = 1 << many  # of each sample
    before, losses = flat(network()), []
    with train.session(model, torch.optim.SGD(model.parameters(), lr=0.01), data(), **options) as s:
        for batch in s:
            loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum")
            s.step(loss * tokens, counted=len(batch[0]) * tokens)
            if s.updated:
                losses.append(s.loss)
    assert scaler.get_scale() == 2.0 ** (122 - left_out)
    assert not torch.equal(flat(model), before)
    assert all(0.01 < loss < 100.0 for loss in losses[left_out:])


@pytest.mark.parametrize(("reduction", "counted"), [("counted", None), ("mean", 3), ("sum", 3)])
def test_what_is_counted_is_said_where_it_is_asked_for_and_nowhere_else(reduction, counted):
    model = network()
    with (
        pytest.raises(InvalidValue, match="counted"),
        train.session(model, adam(model), data(), global_batch=16, steps=1, reduction=reduction) as s,
    ):
        s.step(summed(model, next(iter(s)))[0], counted=counted)


def test_a_growing_batch_is_refused_for_losses_that_are_sums():
    model = network()
    with pytest.raises(InvalidValue, match="reduction"):
        train.session(model, adam(model), data(), global_batch=16, batch_range=(16, 32), reduction="counted")


def test_the_length_of_the_gradient_is_told_as_it_was_before_it_was_clipped():
    model = network()
    with train.session(model, adam(model), data(), global_batch=16, steps=1, clip_norm=1e-3) as s:
        for x, y in s:
            loss = loss_of(model, (x, y))
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            assert s.grad_norm is None
            s.step(loss)
    assert float(s.grad_norm) == pytest.approx(float(torch.nn.utils.get_total_norm(grads)), rel=1e-5)
    assert float(s.grad_norm) > 1e-3


@pytest.mark.parametrize("reduction", ["mean", "sum", "counted"])
def test_a_sample_that_another_worker_counts_changes_nothing(monkeypatch, reduction):
    """Here one process is given both its own and, after them, one that is another's."""

    def trained():
        model = network().eval()
        with train.session(model, adam(model), data(), global_batch=16, epochs=2, reduction=reduction) as s:
            for x, y in s:
                loss = torch.nn.functional.mse_loss(model(x), y, reduction="mean" if reduction == "mean" else "sum")
                s.step(loss, counted=len(x)) if reduction == "counted" else s.step(loss)
        return flat(model), s.loss, s.steps

    expected = trained()

    def with_another(self, offset, size, *_):
        yield MicroBatch(start=offset, count=size, first=True, last=False)
        yield MicroBatch(start=offset, count=1, first=False, last=True, spare=True)

    monkeypatch.setattr(Samples, "pieces", with_another)
    weights, *others = trained()
    assert torch.equal(weights, expected[0])
    assert others == list(expected[1:])
