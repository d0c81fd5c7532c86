"""Loops over epochs, with real processes: equal ranks, right learning rates, or an error (`tests/rigs/training.py`)."""

from __future__ import annotations

import pytest

from tests.rigs.scenario import world

pytest.importorskip("torch")
STEPS, EPOCHS = 20, 6  # an epoch of 320 samples in steps of 16
SMALL = {"SAMPLES": "320", "BATCH": "16", "EPOCHS": str(EPOCHS)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two workers each, with a loop that does something wrong, but for those in which all do the same."""
    env = SMALL | {"EPOCHS": "3", "LOOPS": "apart,last,one stops,all stop,one leaves,all leave,twice"}
    return world("together", tmp_path_factory.mktemp("runs"), env=env)


@pytest.mark.parametrize("loaders", ["0", "1"])
def test_a_schedule_by_epoch_ends_with_the_same_bits_however_often_the_width_changes(tmp_path, loaders):
    runs = world("one_two_one", tmp_path, env=SMALL | {"LOOP": "lambda", "LOADERS": loaders})
    (expected,), (ended,) = (runs[name]["ends"] for name in ("alone", "resized"))  # the other has left before the end
    assert ended["steps"] == expected["steps"] == EPOCHS * STEPS
    assert ended["rate"] == expected["rate"]
    assert ended["parameters"] == expected["parameters"]
    assert runs["resized"]["epochs"]["w0"] == list(range(EPOCHS))
    newcomer = runs["resized"]["epochs"]["w1"]
    assert newcomer[0] >= 1  # it began with the epoch that training was in
    assert newcomer == list(range(newcomer[0], newcomer[0] + len(newcomer)))
    assert set(runs["resized"]["work"]) == {EPOCHS * 320.0}  # all of it, not that of an epoch


def test_what_is_frozen_and_thawed_between_epochs_ends_with_the_same_bits_when_a_worker_comes_and_goes(tmp_path):
    runs = world("one_two_one", tmp_path, env=SMALL | {"LOOP": "freezes"})
    (expected,), (ended,) = (runs[name]["ends"] for name in ("alone", "resized"))
    assert ended["steps"] == expected["steps"] == EPOCHS * STEPS
    assert ended["parameters"] == expected["parameters"]


def test_ranks_whose_learning_rates_differ_are_an_error(runs):
    run = runs["apart"]
    assert not run["finished"]
    assert set(run["codes"].values()) == {1}
    for said in run["errors"].values():
        assert "rank 1 differs from rank 0 in learning rate (0.01 at rank 0, 0.005 at rank 1)" in said
        assert "next: change learning rates alike in every rank" in said
        assert "at step 42" in said  # the next check is at 40, its news comes with 41


def test_ranks_that_differ_after_the_last_step_are_not_finished(runs):
    run = runs["last"]
    assert not run["finished"]
    assert set(run["codes"].values()) == {1}
    assert all("differs from rank 0 in weights: this is no result" in said for said in run["errors"].values())


def test_one_rank_that_stops_before_the_others_is_an_error_and_all_together_are_not(runs):
    one, every = runs["one stops"], runs["all stop"]
    assert not one["finished"]
    assert set(one["codes"].values()) == {1}
    for said in one["errors"].values():
        assert "1 of 2 have left their loop, before the end of the training" in said
        assert "next: leave the loop of the session at the same step in every rank" in said
    assert every["finished"]
    assert {end["steps"] for end in every["ends"]} == {25}


def test_one_rank_that_leaves_an_epoch_is_an_error_and_all_together_are_not(runs):
    one, every = runs["one leaves"], runs["all leave"]
    assert not one["finished"]
    assert set(one["codes"].values()) == {1}
    for said in one["errors"].values():
        assert "1 of 2 have left their loop" in said
    assert every["finished"]
    assert {end["steps"] for end in every["ends"]} == {3 * 7}
    assert len({tuple(end["parameters"]) for end in every["ends"]}) == 1


def test_the_loop_of_old_is_refused_before_a_newcomer_can_go_through_it_again(tmp_path):
    run = world("late", tmp_path, env=SMALL | {"LOOP": "old"})
    assert not run["finished"]
    assert run["codes"]["w0"] == 1
    assert "for epoch in s.epochs()" in run["errors"]["w0"]


def test_a_second_session_in_a_process_is_refused(runs):
    run = runs["twice"]
    assert set(run["codes"].values()) == {1}
    assert "submit the next training as another job" in run["errors"]["w0"]


def test_whoever_evaluates_says_so_and_whoever_waits_for_it_does_not(tmp_path):
    """Within an epoch and after one: that is how the controller tells an evaluation from a hang."""
    run = world("evaluations", tmp_path, env=SMALL)
    assert run["finished"]
    assert set(run["codes"].values()) == {0}
