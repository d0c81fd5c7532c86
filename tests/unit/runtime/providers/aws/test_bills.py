"""What EC2 says of an instance, as cloud time."""

from __future__ import annotations

import pytest

from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.fleet import Fleet
from sublet.runtime.providers.aws.instances import Instance, InstanceRecord, InstanceRecords
from sublet_lab.walls import WallOf

BEGAN_UNIX = 1_900_000_000.0
RECORD = InstanceRecord(
    node_id="n1",
    offer_id="o",
    token="t",  # noqa: S106 - of a test
    region="r",
    zone="z",
    began_s=100.0,
    expires_unix=0,
    instance="i-1",
)


def a_fleet(folder, now_s):
    clock = Clock(began_s=now_s, wall=WallOf(lambda: 0.0))
    return Fleet(
        None, InstanceRecords(folder), clock, server="s", home="h", regions=(), unix_s=lambda: BEGAN_UNIX + 400.0
    )


def an_instance():
    facts = {"id": "i-1", "region": "r", "state": "terminated", "server": "s", "node_id": "n1", "offer_id": "o"}
    return Instance(**facts, token_tag="", kind="k", launched_unix=BEGAN_UNIX, ended_unix=BEGAN_UNIX + 300.0)


@pytest.mark.parametrize(
    ("now_s", "from_s", "to_s"),
    [
        (500.0, 100.0, 400.0),  # 400 s ago it was 100 s
        (500.5, 100.5, 400.5),
        (450.0, 50.0, 350.0),  # cloud time has lost 50 s: who ordered it finds out by this (lost_time.py)
    ],
)
def test_an_instance_was_there_for_as_long_as_ec2_says_and_nothing_is_read_into_it(tmp_path, now_s, from_s, to_s):
    fleet = a_fleet(tmp_path, now_s)
    fleet.keep(RECORD)  # which may have been written anew since
    billed = fleet.bill_for([an_instance()])
    assert (billed.from_s, billed.to_s) == (from_s, to_s)
