"""The loss of a step as a session tells it: to the bit what was added up, whether it had to be added up or not."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from sublet import train  # noqa: E402
from sublet.train.numerics.gradients import Control, Readings  # noqa: E402

CPU = torch.device("cpu")


def told(loss, **more):
    """What a session says of one step with this loss, of weights that are 1."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    found = []
    options = {"global_batch": 4, "epochs": 1, **more}
    with train.session(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(8, 1), **options) as s:
        for batch in s:
            given = loss(model(batch))
            s.step(given)
            with torch.no_grad():
                given.mul_(0.0)  # what a script does with its loss after that is its own
            if s.updated:
                found.append((s.loss, s.loss_tensor, s.loss_tensor))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_loss_is_that_of_the_step_in_whatever_type(dtype):
    (first, tensor, again), (second, *_) = told(lambda out: out.mean().to(dtype) / 3)
    assert tensor.dtype == torch.float32
    assert not tensor.requires_grad
    assert first == float(tensor) == float((torch.ones((), dtype=dtype) / 3).float())
    assert torch.equal(tensor, again)
    assert second < first


def test_taken_at_once_or_in_parts_it_is_the_same():
    whole, parts = (told(lambda out: out.mean() / 4, micro_batch=size) for size in (None, 2))
    assert [each[0] for each in whole] == [each[0] for each in parts]
    assert all(torch.equal(one[1], other[1]) for one, other in zip(whole, parts, strict=True))


def test_sums_over_parts_are_added_up():
    whole, parts = (told(lambda out: out.sum() / 4, micro_batch=size, reduction="sum") for size in (None, 2))
    assert whole[0][0] == 1.0
    assert [each[0] for each in whole] == [each[0] for each in parts]


def test_a_sum_begins_with_nothing_and_so_has_no_sign_there():
    ((number, tensor, _), _) = told(lambda out: -(out.mean() * 0.0))
    assert math.copysign(1.0, number) == 1.0
    assert not torch.signbit(tensor)


def test_numbers_of_a_step_that_was_added_up_are_all_read():
    readings, control = Readings(CPU), torch.arange(float(len(Control)))
    readings.take(control, control[Control.LOSS])
    control.zero_()
    assert readings.numbers == list(range(len(Control)))
    assert float(readings.loss) == Control.LOSS
    assert readings.hear(torch.tensor(7.0), control)
    readings.take(control, control[Control.LOSS])
    assert readings.numbers == [7.0 if each == Control.LOSS else 0.0 for each in range(len(Control))]
    assert float(readings.loss) == 7.0


def test_a_new_group_forgets_what_was_heard_and_not_what_the_last_loss_was():
    readings, control = Readings(CPU), torch.zeros(len(Control))
    assert readings.hear(torch.tensor(7.0), control)
    readings.take(control, control[Control.LOSS])
    assert readings.hear(torch.tensor(8.0), control)
    readings.forget()
    assert readings.numbers == [0.0] * len(Control)
    assert float(readings.loss) == 7.0
    readings.take(control + 1, control[Control.LOSS] + 1)
    assert readings.numbers == [1.0] * len(Control)


def test_nothing_is_left_for_the_next_step_where_some_are_taken_in_parts():
    """A step at once, and the last of an epoch in parts: neither has anything of the other in its loss."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    losses = []
    with train.session(
        model, torch.optim.SGD(model.parameters(), lr=0.0), torch.ones(6, 1), global_batch=4, epochs=3, micro_batch=2
    ) as s:
        for batch in s:
            s.step(model(batch).mean())
            if s.updated:
                losses.append(s.loss)
    assert losses == [1.0] * 6
