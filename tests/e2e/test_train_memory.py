"""Workers whose steps do not fit into memory, with real processes (of `tests/rigs/training.py`)."""

from __future__ import annotations

import pytest

from sublet.wire.exits import EXIT_MEMORY
from tests.rigs.scenario import world

pytest.importorskip("torch")
SMALL = {"SAMPLES": "64", "EPOCHS": "2"}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run that took two samples at a time from the beginning."""
    return world("fixed", tmp_path_factory.mktemp("told"), width=2, env=SMALL | {"MICRO": "2"})


@pytest.mark.parametrize("closed", [True, False], ids=["in the step", "in the script"])
def test_steps_that_do_not_fit_are_made_smaller_by_all_and_train_what_one_that_knew_it_trains(tmp_path, told, closed):
    env = SMALL | {"ROOM": "3"} | ({"CLOSED": "1"} if closed else {})
    short = world("short", tmp_path, width=2, env=env)
    assert {tuple(cut) for cut in short["cuts"]} == {(8, 4), (4, 2)}
    assert short["seen"] == told["seen"]
    assert short["ends"][0]["steps"] == told["ends"][0]["steps"] == 8
    for end in short["ends"]:  # the global batch is what it was, and the sums are those of a run that began so
        assert end["parameters"] == told["ends"][0]["parameters"]
    ends = sorted(short["codes"].values())
    assert ends == [0, 0] if closed else ends[:2] == [0, 0] and set(ends[2:]) == {EXIT_MEMORY}
