from __future__ import annotations

import numpy as np
import pytest

from sublet.market.steps import Steps


def test_steps_are_our_own_copy_and_cannot_be_changed():
    t_s = np.array([0.0, 1.0])
    steps = Steps(t_s=t_s, value=np.array([1, 2]))
    t_s[0] = 99.0
    assert steps.at(0.5, before=0) == 1
    with pytest.raises(ValueError, match="read-only"):
        steps.t_s[0] = 5.0


def test_steps_are_printed_in_one_line_and_compared_by_identity():
    steps = Steps(t_s=np.arange(1000.0), value=np.arange(1000))
    assert repr(steps) == "Steps(rows=1000)"
    assert steps != Steps(t_s=steps.t_s, value=steps.value)
