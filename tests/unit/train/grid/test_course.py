"""What comes to a newcomer beside the units of its parts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sublet.train.checkpoint.saving import Saver  # noqa: E402
from sublet.train.grid.saving import Course  # noqa: E402
from sublet.train.numerics.schedules import Schedules  # noqa: E402
from sublet.train.state.kept import Own  # noqa: E402
from sublet.train.state.state import Progress, State  # noqa: E402


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("scale", torch.full((2,), scale))
        self.register_buffer("cache", torch.full((2,), scale), persistent=False)


def one(scale, rate, tries):
    model = nn.Sequential(Scaled(scale), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    optimizer.step()  # nothing: there are no gradients
    own, progress = Own(None, [model]), Progress(samples=8, batch=4)
    kept = own.keep({"tries": tries})
    state = State(model, optimizer, [schedule], own, 0)
    course = Course(state, progress, Schedules([schedule]), Saver(None, "alone", lambda _: None))
    return model, optimizer, kept, progress, course


def test_a_newcomer_has_rates_schedules_what_is_kept_buffers_and_how_far_it_is():
    model, optimizer, _, _, course = one(2.0, 0.5, 7)
    for _ in range(3):
        course.stepped()
    other_model, other, other_kept, other_progress, newcomer = one(1.0, 0.1, 0)
    newcomer.take(course.tree())
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.25
    assert (other_kept.tries, other_progress.steps, other_progress.epoch) == (7, 3, 1)
    assert torch.equal(other_model[0].scale, model[0].scale)
    assert torch.equal(other_model[0].cache, torch.ones(2)), "what is in no state is its own"
    newcomer.stepped()
    course.stepped()
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.125


def test_a_newcomer_trains_what_the_others_train():
    model, _, _, _, course = one(2.0, 0.5, 7)
    other_model, _, _, _, newcomer = one(1.0, 0.1, 0)
    model[1].requires_grad_(False)
    other_model[0].requires_grad_(False)
    newcomer.take(course.tree())
    assert [each.requires_grad for each in other_model.parameters()] == [True, True, False, False]


def test_what_is_taken_is_a_copy():
    _, optimizer, _, _, course = one(2.0, 0.5, 7)
    _, other, _, _, newcomer = one(1.0, 0.1, 0)
    newcomer.take(course.tree())
    other.param_groups[0]["lr"] = 9.0
    assert optimizer.param_groups[0]["lr"] == 0.5
