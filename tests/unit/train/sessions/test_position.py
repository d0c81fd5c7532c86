"""Where in its loop a script is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.train.sessions.position import Extent, Position
from sublet.train.state.state import Progress


def position(epoch=0, until=None, **facts):
    found = Position(Progress(samples=8, batch=4, epoch=epoch, steps=2 * epoch, **facts))
    found.extent, found.until = Extent(epochs=3), until
    return found


@pytest.mark.parametrize(
    ("epoch", "until", "through", "over"),
    [(0, None, False, False), (0, 1, False, False), (1, 1, True, False), (2, 1, True, False), (3, None, True, True)],
)
def test_an_epoch_is_through_when_training_is_in_the_next_one(epoch, until, through, over):
    found = position(epoch, until)
    assert (found.through, found.over, found.past_epoch) == (through, over, through and until is not None)


def test_training_that_the_others_have_left_is_over():
    found = position(1, 2)
    assert not found.over
    found.is_left = True
    assert (found.over, found.through) == (True, True)


def test_a_loop_whose_state_is_of_another_epoch_is_through_at_the_end_of_that():
    found = position(2, 3)
    found.progress.epoch = 0  # all have gone back
    found.arrive()
    assert found.until == 1
    outside = position(2)
    outside.arrive()
    assert outside.until is None


def test_between_batches_are_the_lines_before_an_epoch_and_those_after_it():
    assert position(0, 1).between_batches
    assert not position(0, 1, begun=True).between_batches
    assert position(1, 1, begun=True).between_batches
    assert not position(0).between_batches
