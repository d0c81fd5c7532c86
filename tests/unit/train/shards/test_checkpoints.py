"""A checkpoint is the same with ranges and without: each reads the other's, at any width, with real processes."""

from __future__ import annotations

import pytest

from sublet.train import EXIT_LEFT
from tests.rigs.scenario import world

pytest.importorskip("torch")
WHOLE = {str(epoch): list(range(1000)) for epoch in range(3)}
CHAINS = {  # width:keep; 0 = everybody has all of it
    "with ranges, then without": "4:2 3:0 1:0",
    "without, then with ranges": "2:0 4:1 5:2",
    "ranges of other widths and numbers of holders": "3:1 5:2 2:1 1:2",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return world("fixed", tmp_path_factory.mktemp("alone"), env={"DTYPE": "float64"}, width=1)["ends"][0]


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_each_goes_on_from_the_checkpoint_of_the_other_as_one_process_would(tmp_path, alone, chain):
    run = world("crosses", tmp_path, module="tests.rigs.crossing", env={"DTYPE": "float64", "CHAIN": chain})
    assert set(run["codes"].values()) == {0, EXIT_LEFT}
    assert [source for source, _ in run["entries"]] == ["fresh", *["checkpoint"] * (len(chain.split()) - 1)]
    assert [step for _, step in run["entries"]] == [0, *run["left"]]  # not one step is done again
    assert run["seen"] == WHOLE
    assert not any("Warning" in path.read_text() for path in tmp_path.glob("*.err"))
    for end in run["ends"]:
        assert (end["steps"], end["rate"]) == (alone["steps"], pytest.approx(alone["rate"], abs=1e-15))
        assert end["parameters"] == pytest.approx(alone["parameters"], rel=1e-12, abs=1e-12)
