"""What a member of a grid says reaches whoever hears it as it was said."""

from __future__ import annotations

import pytest

from sublet.errors import BadInput
from sublet.wire.lines import LineBuffer, to_line
from sublet.wire.messages import Keep, Stepped

STEPPED = Stepped(
    worker_id="w", generation=3, step=1, done=12.0, epoch=0, loss=1.5, step_s=0.2, atoms=6, units=(0.0, 0.25, 1e-3)
)
KEEP = Keep(worker_id="w", generation=3, parts=(0, 2))


def test_times_of_units_and_parts_to_keep_pass_the_wire():
    assert list(LineBuffer().feed(to_line(STEPPED) + to_line(KEEP))) == [STEPPED, KEEP]


@pytest.mark.parametrize("wrong", [b"[-1.0]", b"[1e400]", b'["1"]', b"[null]", b"[true]", b"3"])
def test_times_of_units_that_cannot_be_are_refused(wrong):
    line = to_line(STEPPED).replace(b"[0.0,0.25,0.001]", wrong)
    assert wrong in line
    with pytest.raises(BadInput, match="units"):
        list(LineBuffer().feed(line))
