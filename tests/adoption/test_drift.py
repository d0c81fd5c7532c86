"""Every loop that the documentation shows, after twenty random changes of its width: all ranks have the same weights.

`make test` has a sample of the loops, `pytest tests/adoption/test_drift.py` all of them.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.docs_loops import SAMPLES, loops  # noqa: E402
from tests.rigs.scenario import world  # noqa: E402

SEED = int(os.environ.get("TEST_SEED", "1"))
TRIED = sorted(name for name, loop in loops().items() if loop.kind != "framework")


@pytest.mark.parametrize("name", TRIED)
def test_a_loop_of_the_docs_is_the_same_in_all_ranks_after_twenty_changes_of_width(name, tmp_path):
    loop = loops()[name]
    if "integrations.tensorboard" in loop.code:
        pytest.importorskip("tensorboard")
    run = world(loop.kind, tmp_path, env={"LOOP": name}, module="tests.adoption.drifts", seed=SEED)
    require_same(run, tmp_path, comparable=not loop.grows)
    if loop.has_epochs and loop.kind == "session":
        assert all(samples == list(range(SAMPLES)) for samples in run["disturbed"]["epochs"].values())


def require_same(run, place, *, comparable=True):
    """In all ranks to the bit, and as if nobody had changed anything, within rounding."""
    alone, disturbed = run["alone"], run["disturbed"]
    assert len(disturbed["kinds"]) == 20
    assert set(disturbed["codes"]) == {0}
    (expected,) = ends_of(place / "alone")
    first, *others = ends_of(place / "disturbed")
    for other in others:
        torch.testing.assert_close(other, first, rtol=0.0, atol=0.0)
    assert len(disturbed["codes"]) == 1 + len(others)
    if comparable:
        assert disturbed["given"] == alone["given"]
        assert disturbed["steps"] == alone["steps"]
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)


def ends_of(place):
    """What each worker left behind that came to the end."""
    return [torch.load(path) for path in sorted(place.glob("w*.pt"))]
