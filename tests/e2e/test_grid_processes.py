"""Grids of real processes under kill -9; `python -m sublet_lab.grid --rows --kills 200` does it in full."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")
COMMAND = [sys.executable, "-m", "sublet_lab.grid"]


def outcomes(*words):
    """Of each training, the last column of the table."""
    found = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=280, check=False)
    rows = found.stdout.splitlines()[1:]
    assert "trainings" in found.stdout, found.stderr
    return [row.rpartition("  ")[2] for row in rows if not row.startswith("from") and " trainings, " not in row]


def test_a_part_whose_only_copy_is_killed_goes_on_with_who_keeps_it_to_the_bit():
    """Real processes, since a kill ends no thread and a mesh of threads no connection."""
    assert outcomes("--only", "1 x 3, 1 at agreed") == ["bitwise"]


def test_a_part_that_is_killed_with_who_keeps_it_comes_back_from_the_checkpoint_to_the_bit():
    assert outcomes("--only", "saved, 1 x 3, (0, 1) at once") == ["bitwise"]


def test_what_a_script_sets_by_the_step_is_right_at_who_joins_it():
    """Before each step, from `s.steps`: of a newcomer it would be that of step 0."""
    assert outcomes("--only", "script, 1x2 2x2 1x4") == ["within 1e-12"]


def test_a_script_that_stops_early_does_so_at_all_workers_whoever_came_for_one_that_was_killed():
    """By what is kept: a newcomer that counted a line twice would leave alone, and the other wait for it."""
    assert outcomes("--only", "stops early") == ["within 1e-12"]


def test_an_evaluation_in_which_a_worker_is_killed_is_made_again_with_who_comes_in_its_place():
    assert outcomes("--only", "killed in evaluations") == ["within 1e-12"]


@pytest.mark.long
@pytest.mark.parametrize("only", ["script, 2 x 2, killed", "script, 1 x 3, killed", "saved, script"])
def test_what_a_script_sets_by_the_step_is_right_at_who_comes_for_one_that_was_killed(only):
    assert set(outcomes("--only", only)) == {"within 1e-12"}


@pytest.mark.long
@pytest.mark.parametrize("only", ["saved, 1x3", "saved, 1 x 3, 0 at", "saved, 1 x 3, 2 at"])
def test_a_grid_goes_on_from_the_last_that_was_committed_whoever_dies_before_the_next_is(only):
    assert set(outcomes("--only", only)) == {"bitwise"}


@pytest.mark.long
@pytest.mark.parametrize("only", ["2 x 2, 3 at", "1 x 3, 0 at", "newcomer, giver at", "newcomer, newcomer at", "1x1"])
def test_grids_of_processes_are_one_process_to_the_bit_wherever_one_dies(only):
    assert set(outcomes("--only", only)) == {"bitwise"}


@pytest.mark.long
def test_a_dozen_kills_at_random_change_nothing():
    assert set(outcomes("--kills", "12", "--seed", "5")) == {"bitwise"}
