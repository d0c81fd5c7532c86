"""What does not fit into memory is tried again with fewer samples at a time, and the batch stays as it was.

But for the last test, which needs a GPU, nothing here has little memory: models raise what torch raises, above a size.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet import train  # noqa: E402
from sublet.errors import OutOfMemory  # noqa: E402
from sublet.train.numerics.memory import Memory  # noqa: E402
from tests.rigs.little_network import FEATURES, adam, data, flat  # noqa: E402


class _NoRoom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, room):
        ctx.room = room
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if len(gradient) > ctx.room():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return gradient, None


class Narrow(nn.Module):
    """Has room for so many samples, in forward or in backward."""

    def __init__(self, room, where="forward"):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
        self.room, self.where, self.tried = room, where, []

    def forward(self, x):
        self.tried.append(len(x))
        if self.where == "forward" and len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.layers(_NoRoom.apply(x, lambda: self.room) if self.where == "backward" and x.requires_grad else x)


def loss_of(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x.requires_grad_()), y)


def trained(model, *, closed, at_step=None, **more):
    with train.session(model, adam(model), data(), global_batch=16, epochs=2, **more) as s:
        for batch in s:
            if s.steps == at_step:
                model.room = 5
            s.step((lambda batch=batch: loss_of(model, batch)) if closed else loss_of(model, batch))
    return s


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_does_not_fit_is_made_of_fewer_samples_at_a_time_to_the_bit(where, capsys):
    short, told = Narrow(room=5, where=where), Narrow(room=1000)
    s = trained(short, closed=where == "forward")
    trained(told, closed=False, micro_batch=4)
    assert torch.equal(flat(short), flat(told))
    assert (s.steps, s.global_batch, s.samples_done) == (8, 16, 100)
    assert short.tried[:3] == [16, 8, 4]
    assert max(short.tried[2:]) == 4
    assert "16 samples at a time did not fit into memory: 8 from now on" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_memory_that_becomes_short_in_the_middle_changes_no_sum_but_by_rounding(where):
    roomy, short = Narrow(room=1000), Narrow(room=1000, where=where)
    trained(roomy, closed=False)
    s = trained(short, closed=where == "forward", at_step=3)
    assert s.steps == 8
    assert torch.allclose(flat(short), flat(roomy), rtol=1e-5, atol=1e-6)
    assert 16 in short.tried
    assert short.tried[-1] <= 4


def test_what_was_accumulated_before_it_is_dropped_with_it():
    """The second micro-batch of a step does not fit; the first is not counted twice."""
    model, other = Narrow(room=1000, where="backward"), Narrow(room=1000)
    seen = 0
    with train.session(model, adam(model), data(16), global_batch=16, epochs=1, micro_batch=8) as s:
        for batch in s:
            seen += 1
            model.room = 5 if seen == 2 else 1000
            s.step(loss_of(model, batch))
    with train.session(other, adam(other), data(16), global_batch=16, epochs=1, micro_batch=4) as s:
        for batch in s:
            s.step(loss_of(other, batch))
    assert model.tried == [8, 8, 4, 4, 4, 4]
    assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize(("where", "closed"), [("forward", True), ("backward", False), ("forward", False)])
def test_one_sample_that_does_not_fit_is_an_error_that_says_what_to_do(where, closed):
    model = Narrow(room=0, where=where)
    with pytest.raises(OutOfMemory, match="one sample at a time") as caught:
        trained(model, closed=closed, micro_batch=1 if not closed else None)
    assert "bfloat16" in caught.value.hint
    assert "GPUs with more memory" in str(caught.value)


@pytest.mark.parametrize("more", [{}, {"batch_range": (16, 32)}])
def test_an_update_that_does_not_fit_is_an_error_that_says_what_to_do(monkeypatch, more):
    model = Narrow(room=16)

    def no_room(_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(type(adam(model)), "step", no_room)
    with pytest.raises(OutOfMemory, match="the optimizer's step does not fit") as caught:
        trained(model, closed=True, **more)
    assert "keeps less" in caught.value.hint
    assert model.tried == [16]  # nothing was made again of fewer samples


def test_a_loss_that_the_script_computes_itself_ends_a_lonely_script_with_advice():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        trained(Narrow(room=8), closed=False)
    [note] = caught.value.__notes__
    assert "16 samples at a time did not fit" in note
    assert "micro_batch=8" in note


def evaluated(model):
    with train.session(model, adam(model), data(), global_batch=16, epochs=2) as s:
        for _ in s.epochs():
            for batch in s:
                s.step(loss_of(model, batch))
            raise torch.OutOfMemoryError("in an evaluation")


def test_memory_that_is_short_elsewhere_is_not_the_business_of_a_session():
    with pytest.raises(torch.OutOfMemoryError, match="evaluation") as caught:
        evaluated(Narrow(room=1000))
    assert not hasattr(caught.value, "__notes__")


def test_the_lowest_limit_counts():
    memory = Memory(None)
    memory.limit(0)
    assert memory.micro_batch is None
    memory.limit(8)
    memory.limit(32)
    assert memory.micro_batch == 8
    assert memory.cut(7).micro_batch == memory.micro_batch == 3


def on_a_gpu(room_gib, **more):
    """Eight wide layers over 64 samples of 8 MiB, with so much memory; its weights, and the sizes that were given."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(room_gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8))).cuda()
    x = torch.randn(128, 4096, 512, generator=torch.Generator().manual_seed(1))
    sizes = []
    dataset = torch.utils.data.TensorDataset(x)
    with train.session(model, adam(model), dataset, global_batch=64, epochs=1, device="cuda", **more) as s:
        for (batch,) in s:
            sizes.append(len(batch))
            s.step(lambda batch=batch: (model(batch) - batch).square().mean())
    assert (s.steps, s.global_batch) == (2, 64)
    return flat(model), sizes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_is_full_takes_fewer_samples_at_a_time():
    weights, sizes = on_a_gpu(3)
    assert (sizes[0], sizes[1]) == (64, 32)
    fits = sizes[-1]
    assert fits < 32
    told, _ = on_a_gpu(3, micro_batch=fits)
    assert torch.equal(weights, told)
