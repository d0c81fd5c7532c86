"""Anchors that nobody leads any more: `sublet gc` and `sublet down` find them, on moto, and end no other."""

from __future__ import annotations

import pytest

from sublet.machine.wall import WALL
from sublet.runtime.controller_host.instance import launch_request
from sublet.runtime.controller_host.record import HostRecord, keep, read_record
from sublet.runtime.private import home_of
from sublet.runtime.providers.aws.build import server_of
from sublet.runtime.providers.aws.config import read_config
from tests.rigs.moto_cloud import ACCOUNT, IMAGE, REGION, account, forget_all, instances, moto

CONFIG = f"""
regions = ["{REGION}"]
instance_types = ["g4dn.xlarge"]
image = "{IMAGE}"
endpoint_url = "{{}}"
"""
HOUR = 3600
pytestmark = pytest.mark.long


@pytest.fixture
def state(tmp_path, monkeypatch):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "aws.toml").write_text(CONFIG.format(moto()), encoding="utf-8")
    monkeypatch.setenv("SUBLET_STATE", str(folder))
    monkeypatch.delenv("SUBLET_AWS", raising=False)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    forget_all()
    return folder


def anchor_of(state, *, expires_in_s):
    """As `up --on aws` launches one; the laptop has not lived long enough to write its name down."""
    facts = {"region": REGION, "token": "t", "nonce": "n", "kind": "t3.small", "user": "u", "python": "p"}
    record = keep(state, HostRecord(expires_unix=int(WALL.unix() + expires_in_s), **facts))
    config, server = read_config(state / "aws.toml"), server_of(state)
    request = launch_request(record, config, server=server, home=home_of(state), key="k")
    return account().run_instances(**request)["Instances"][0]["InstanceId"]


def alive(server):
    return [row["InstanceId"] for row in instances(f"anchor-{server}") if row["State"]["Name"] != "terminated"]


def test_an_anchor_that_nobody_renews_is_an_orphan_also_where_its_directory_is_lost(sublet, state, monkeypatch):
    name, server = anchor_of(state, expires_in_s=-1), server_of(state)
    other = anchor_of(state, expires_in_s=HOUR)
    monkeypatch.setenv("SUBLET_STATE", str(state.with_name("new")))  # the laptop was lost, and this is another
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto())
    assert sublet("gc", "-o", "json").json["found"] == []  # nothing says where to look
    answer = sublet("gc", "-y", "--region", REGION, "-o", "json")
    assert answer.code == 0, answer.err
    found = answer.json
    assert found["ended"] == [name]
    assert {row["what"]: row["orphan"] for row in found["found"]} == {name: True, other: False}
    assert alive(server) == [other]


def test_down_ends_an_anchor_whose_name_the_laptop_never_learned(sublet, state):
    pytest.importorskip("asyncssh")
    anchor_of(state, expires_in_s=HOUR)  # it died between the launch and the answer
    assert sublet("down").code == 0
    assert alive(server_of(state)) == []
    assert read_record(state) is None
