"""Every loop that the documentation shows, after twenty random changes of its width: all ranks have the same weights.

`make test` has a sample of the loops, `pytest tests/adoption/test_drift.py` all of them.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.rigs.docs_loops import SAMPLES, loops  # noqa: E402
from tests.rigs.drifted import SEED, require_same  # noqa: E402
from tests.rigs.scenario import world  # noqa: E402

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
