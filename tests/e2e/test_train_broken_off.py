"""Scripts that have left their loop when a worker is lost, with real processes (`tests/rigs/broken_off.py`)."""

from __future__ import annotations

import pytest

from sublet.train import EXIT_LOST
from tests.rigs.scenario import world

pytest.importorskip("torch")
RIG = "tests.rigs.broken_off"


@pytest.mark.parametrize(("env", "workers"), [({"ENDS_AT": "0"}, 1), ({"ENDS_AT": "0"}, 2), ({"ENDS_AT": "9"}, 2)])
@pytest.mark.parametrize("length", [{}, {"STEPS": "60"}], ids=["epochs", "steps"])
def test_a_training_whose_script_left_its_loop_is_over_at_every_later_start(env, workers, length, tmp_path):
    run = world("left", tmp_path, env=env | length, module=RIG, workers=workers)
    first, *later = run["starts"]
    assert len(first) == workers
    assert all(end == first[0] for end in first)
    assert first[0]["steps"] == (9 if env["ENDS_AT"] == "9" else 25)  # five of the epoch that ended early, and 20
    assert first[0]["bad"] == 2
    assert later == [first, first]  # to the bit, with what was kept, and the lines behind the loop have run
    assert run["codes"] == [-9] * 2 * workers + [0] * workers
    said = [text for text in run["said"] if "was ended by its script" in text]
    assert len(said) == 2  # rank 0 of each later start, once
    assert all(text.count("there is nothing left to train") == 1 for text in said)


def test_whoever_comes_in_place_of_one_that_was_lost_behind_its_loop_has_nothing_to_train(tmp_path):
    run = world("relieved", tmp_path, env={"ENDS_AT": "0"}, module=RIG)
    assert run["finished"]
    assert run["codes"] == [0, -9, 0]
    first, second = run["ends"]
    assert first == second
    assert first["steps"] == 25


def test_who_has_left_its_loop_when_all_go_back_to_a_checkpoint_does_not_say_that_its_steps_are_all(tmp_path):
    """The other had a range for itself. Whoever is started then makes what is missing."""
    run = world("undone", tmp_path, env={"ENDS_AT": "0"}, module=RIG)
    assert not run["finished"]
    assert run["codes"] == [EXIT_LOST, -9]
    assert run["then"]
    assert run["end"]["steps"] == 25
