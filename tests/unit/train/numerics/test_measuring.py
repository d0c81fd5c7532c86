"""Which steps of a session measure noise, and by what; weights of losses of other kinds; and who saves when asked."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from types import SimpleNamespace  # noqa: E402

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from sublet import train  # noqa: E402
from sublet.train.link.peers import PeerGroup  # noqa: E402
from sublet.train.numerics.gradients import Control  # noqa: E402
from sublet.train.numerics.noise import FIRST_HALVES_EVERY  # noqa: E402
from tests.rigs.little_network import FEATURES, data, flat  # noqa: E402


def one(samples=None, **more):
    torch.manual_seed(1)
    model = nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = data() if samples is None else torch.utils.data.Subset(data(), range(samples))
    return model, train.session(model, optimizer, dataset, global_batch=more.pop("global_batch", 16), **more)


def begin(session, world, rank=0):
    """The first step of a worker among so many, up to its first batch."""
    steps = session._strategy.steps
    batches = steps.batches(PeerGroup(rank=rank, world=world), bool)
    next(batches)
    return steps


def test_of_several_losses_no_noise_is_measured():
    nets = {name: nn.Linear(FEATURES, 1) for name in "DG"}
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.1) for name, net in nets.items()}
    with train.session(nets, optimizers, data(), global_batch=16, steps=2) as s:
        assert not begin(s, 2).noise.now
    with one(steps=2)[1] as s:
        assert begin(s, 2).noise.now
    with one(steps=2, reduction="sum")[1] as s:
        assert not begin(s, 2).noise.now


@pytest.mark.parametrize(("samples", "mean_inverse"), [(3, 1.0), (16, 0.25)])
def test_whoever_has_no_samples_has_no_part_in_the_measured_noise(samples, mean_inverse):
    """Of the samples that a worker has, its part of the sum is the inverse: the mean is over those who have some."""
    total = 0.0
    for rank in range(4):
        with one(samples, steps=2)[1] as s:
            total += float(begin(s, 4, rank).gradients.slots[Control.INVERSE])
    assert total == pytest.approx(mean_inverse)


def test_the_last_step_of_an_epoch_is_not_taken_in_halves():
    with one(epochs=10_000, global_batch=16, batch_range=(16, 32))[1] as s:
        steps = s._strategy.steps
        steps.noise.samples_in_all = 10**9
        assert steps.progress.steps % FIRST_HALVES_EVERY == 0
        assert steps.noise.takes_halves(16)
        assert not steps.noise.takes_halves(15)


def test_a_share_is_as_exact_as_the_loss_that_it_weighs():
    """Under autocast some losses are of bfloat16: a third of it is none of float32."""
    model, session = one(6, global_batch=6, micro_batch=2, steps=2)
    seen, before = [], None
    with session as s:
        for x, y in s:
            loss = F.mse_loss(model(x), y)
            if s.steps == 0:
                loss = loss.bfloat16()
            else:
                before = flat(model).clone() if before is None else before
                seen.append((x, y))
            s.step(loss)
    x, y = (torch.cat(each) for each in zip(*seen, strict=True))
    expected, rows = before, torch.cat([x, torch.ones(len(x), 1)], 1)
    slope = 2 * rows.T @ (rows @ expected[:, None] - y) / len(x)
    torch.testing.assert_close(flat(model), expected - 0.1 * slope[:, 0], rtol=1e-6, atol=1e-6)


def test_a_request_to_save_waits_for_whoever_is_rank_0(tmp_path):
    model, session = one(steps=6, checkpoint_dir=tmp_path)
    line = SimpleNamespace(save_now=False)
    taken = []

    def take():
        taken.append((s.steps, s.rank))
        was, line.save_now = line.save_now, False
        return was

    with session as s:
        s._link.take_save_request = take
        for x, y in s:
            s.step(F.mse_loss(model(x), y))
            if s.steps == 2:
                s._strategy.members.group.rank, line.save_now = 1, True
            elif s.steps == 4:
                assert line.save_now  # a rank 1 that took it could not save
                s._strategy.members.group.rank = 0
    assert not line.save_now
    assert {rank for _, rank in taken} == {0}
