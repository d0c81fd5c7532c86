"""What training has come to beside the units is the same at whoever takes it."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sublet.testing.grid.model import a_net, adam  # noqa: E402
from sublet.train.grid.course import Course  # noqa: E402
from sublet.train.schedules import Schedules  # noqa: E402
from sublet.train.state import Progress  # noqa: E402


def a_course(model):
    optimizer = adam(model)
    return Course(Progress(samples=40, batch=8), Schedules([], optimizer), optimizer, None, None, model)


def test_who_joins_goes_on_with_the_python_and_numpy_numbers_of_the_others_and_with_torchs_of_its_own():
    giver, taker = a_course(a_net()), a_course(a_net())
    tree = giver.tree()
    theirs = random.random(), np.random.random()  # noqa: NPY002 - what scripts use
    torch.manual_seed(1)
    ours = torch.rand(2)
    torch.manual_seed(1)
    taker.take(tree)
    assert (random.random(), np.random.random()) == theirs  # noqa: NPY002 - as above
    assert torch.equal(torch.rand(2), ours)


def test_a_checkpoint_of_an_earlier_version_may_say_more_of_how_far_it_is():
    giver, taker = a_course(a_net()), a_course(a_net())
    giver._progress.advance()
    tree = giver.tree()
    tree["progress"]["proved"] = "something"
    taker.take(tree)
    assert (taker._progress.steps, taker._progress.offset) == (1, 8)
