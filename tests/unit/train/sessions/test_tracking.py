"""What is logged, whoever is rank 0 when it is said."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from sublet.train.link.agent_line import ControllerLink
from sublet.train.sessions.tracking import Log
from sublet_lab.notebook import Notebook, noted


def a_log(folder):
    return Log((Notebook(folder),), ControllerLink(""), "job-1")


def say(log, rank, step, **values):
    log.write(values, rank=rank, world=2, steps=step)


def rows(folder, name="loss"):
    (values,) = noted(folder).values()
    return values[name]


def test_a_step_that_rank_0_made_and_never_spoke_of_is_told_by_who_follows_it(tmp_path):
    one, other = a_log(tmp_path), a_log(tmp_path)
    for step in (1, 2):
        for rank, log in enumerate((one, other)):
            say(log, rank, step, loss=float(step))
    say(other, 1, 3, loss=3.0)
    say(other, 1, 3, held_out=0.5)  # one was killed before it said either
    other.settle(0)
    say(other, 0, 4, loss=4.0)
    assert rows(tmp_path) == [(step, float(step)) for step in (1, 2, 3, 4)]
    assert rows(tmp_path, "held_out") == [(3, 0.5)]
    assert rows(tmp_path, "sublet/workers") == [(step, 2.0) for step in (1, 2, 3, 4)]


def test_what_was_said_of_steps_that_are_to_be_made_again_is_not_told_ahead_of_them(tmp_path):
    log = a_log(tmp_path)
    for step in (4, 5, 6):
        say(log, 1, step, loss=float(step))
    for step in (5, 6):  # all went back to a checkpoint, and here is rank 0
        say(log, 0, step, loss=10.0 * step)
    assert rows(tmp_path) == [(4, 4.0), (5, 5.0), (6, 60.0)]


def test_without_a_tracker_nothing_is_kept(tmp_path):
    log = Log((), ControllerLink(""), "job-1")
    say(log, 1, 1, loss=1.0)
    assert not log._held
    assert not list(tmp_path.iterdir())
