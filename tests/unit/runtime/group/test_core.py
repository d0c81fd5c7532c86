"""When a group has its optimizer's state in ranges, and who cannot be in one."""

from __future__ import annotations

import pytest

from sublet.domain.units import GIB
from sublet.runtime.group.core import Ranging
from sublet.runtime.jobs.bounds import Shards
from sublet.wire.messages import Ready


def ready(*, weights=8, moments=8, device=16, ranges=True):
    return Ready(
        worker_id="a.1.1",
        ranges=ranges,
        weight_bytes=weights * GIB,
        moment_bytes=moments * GIB,
        device_bytes=device * GIB,
    )


@pytest.mark.parametrize(
    ("workers", "message", "on"),
    [
        (4, ready(), True),  # 16 GiB of 16 x 0.9; cut in two 12
        (4, ready(device=24), False),  # it fits as it is
        (3, ready(), False),  # three hold everything: there is nothing to gain
        (4, ready(moments=40), False),  # 8 + 20: it fits neither way
        (16, ready(moments=40), True),  # 8 + 5
        (4, ready(ranges=False), False),
        (4, ready(device=0), False),  # a CPU
    ],
)
def test_auto_is_on_where_the_state_fits_in_ranges_and_not_otherwise(workers, message, on):
    ranging = Ranging(Shards.AUTO)
    ranging.hear(message, workers)
    assert ranging.on is on
    ranging.hear(ready(device=100), workers)
    ranging.hear(ready(), 64)
    assert ranging.on is on, "members of a later group must be like those of the first"


def test_on_and_off_are_not_asked_about_memory():
    for asked in (Shards.ON, Shards.OFF):
        ranging = Ranging(asked)
        ranging.hear(ready(device=1000), 8)
        assert ranging.on is (asked is Shards.ON)


def test_a_session_that_cannot_is_refused_in_words():
    assert "train it without stages" in Ranging(Shards.ON).refuses(Ready(worker_id="a.1.1"))
    assert Ranging(Shards.AUTO).refuses(Ready(worker_id="a.1.1")) == ""
    assert "take 20.0 GiB, and its device has 16.0" in Ranging(Shards.AUTO).refuses(ready(weights=20))
    assert Ranging(Shards.AUTO).refuses(ready()) == ""
