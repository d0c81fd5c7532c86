"""Jobs that stay on noticed nodes until they must leave, and prepare: boots and notices cost next to nothing."""

from __future__ import annotations

import pytest

from tests.rigs.notices import percent


@pytest.mark.parametrize(("model", "notice_s"), [("bert", 30.0), ("bert", 120.0), ("gpt-1.5b", 120.0)])
def test_with_boots_and_notices_liveput_makes_99_5_percent_of_its_undisturbed_samples(model, notice_s):
    """Before jobs stayed until they must leave: 99.2, 98.2 and 98.8. All of them: `python -m tests.rigs.notices`."""
    assert percent(model, 45.0, notice_s) >= 99.5
