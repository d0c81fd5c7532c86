"""A grid of one does what the plain session does: the same operations, and it looks at no number before it must."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sublet import train  # noqa: E402
from tests.rigs.numbers_in_stages import BATCH, MICRO, a_net, data, squared  # noqa: E402

STEPS = 4
LOOKS = "aten._local_scalar_dense.default"  # by which a number comes to Python: on a GPU, all work before it must end


FACTS = {"global_batch": BATCH, "micro_batch": MICRO, "loss": squared}


class Counts(TorchDispatchMode):
    """Every operation that reaches a device, in forward, backward and update."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(session, one_step):
    """Operations of the third step: the first makes the moments, and all has settled in the second."""
    with session as s:
        batches = iter(s.batches(epochs=1))
        for _ in range(2):
            one_step(s, batches)
        with Counts() as counts:
            one_step(s, batches)
        one_step(s, batches)
        assert next(batches, None) is None
    return counts.found


def of_the_plain_session(optimizer, model, **more):
    def one_step(s, batches):
        for _ in range(BATCH // MICRO):
            x, y = next(batches)
            s.step(nn.functional.mse_loss(model(x), y))

    return counted(
        train.session(model, optimizer, data(BATCH * STEPS), global_batch=BATCH, micro_batch=MICRO, **more), one_step
    )


def of_a_grid_of_one(optimizer, model, **more):
    def one_step(s, batches):
        s._strategy.step(next(batches), None, None)  # `s.step` returns the loss, and so looks at it

    facts = {**FACTS, **more}
    return counted(train.session(model, optimizer, data(BATCH * STEPS), **facts), one_step)


def test_a_step_alone_makes_no_pass_over_the_weights_that_the_plain_one_does_not_make():
    found = {}
    for of in (of_the_plain_session, of_a_grid_of_one):
        model = a_net()
        found[of] = of(torch.optim.AdamW(model.parameters(), lr=0.05), model)
    more = found[of_a_grid_of_one] - found[of_the_plain_session]
    assert not {name for name in more if "zero" in name or "add" in name or "copy" in name}, more
    assert sum(more.values()) <= 4, more


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_a_step_alone_looks_at_no_number_by_itself(clip_norm):
    model = a_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    assert of_a_grid_of_one(optimizer, model, clip_norm=clip_norm)[LOOKS] == 0


def test_its_loss_is_there_for_who_asks():
    model, seen = a_net(), []
    samples = data(BATCH * STEPS)
    with train.session(model, torch.optim.SGD(model.parameters(), lr=0.0), samples, **FACTS) as s:
        assert s.loss != s.loss, "before the first step there is none"
        for batch in s.batches(epochs=1):
            s.step(batch)
            seen.append((s.loss, s.loss))
    with torch.no_grad():
        whole = nn.functional.mse_loss(model(samples.tensors[0]), samples.tensors[1]).item()
    assert all(first == again for first, again in seen)
    assert sum(first for first, _ in seen) / len(seen) == pytest.approx(whole, rel=1e-5)


def test_gradients_that_nobody_else_needs_take_memory_once():
    model = a_net()
    weights = list(model.parameters())
    with train.session(model, torch.optim.AdamW(model.parameters()), data(BATCH * STEPS), **FACTS) as s:
        for batch in s.batches(epochs=1):
            s.step(batch)
            arenas = s._strategy.member.holdings.arenas
            assert sum(arena.gradients.numel() for arena in arenas.values()) == 0
            assert all(each.grad is None for each in weights)
