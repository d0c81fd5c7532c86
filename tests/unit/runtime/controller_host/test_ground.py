"""The rights of an anchor: what its life asks of EC2 is allowed, for its own tag, and nothing without one."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

from sublet.runtime.controller_host import instance, watchdog
from sublet.runtime.controller_host.ground import anchor_statements, own_statements
from sublet.runtime.controller_host.record import HostRecord
from sublet.runtime.providers.aws.config import AwsConfig

CONFIG = AwsConfig(regions=("us-east-1",), instance_types=("g5.xlarge",), image="ami-1", anchor_profile="role")
VERBS = re.compile(r'"((?:run|start|terminate|create|modify)_[a-z_]+)"|client\.(create_[a-z_]+)\(')


def test_every_order_that_is_given_of_an_anchor_is_allowed_and_only_with_its_tag():
    statements = anchor_statements(CONFIG, "s1")
    allowed = {action for each in statements for action in each["Action"]}
    text = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (instance, watchdog))
    given = {first or second for first, second in VERBS.findall(text)}
    assert {f"ec2:{verb.title().replace('_', '')}" for verb in given} == allowed
    assert statements
    for each in statements:
        tags = {
            name: value for name, value in each["Condition"]["StringEquals"].items() if name.endswith("sublet:server")
        }
        assert set(tags.values()) == {"anchor-s1"}, each["Sid"]


def _of(sid, config):
    return next((each for each in anchor_statements(config, "s1") if each["Sid"] == sid), None)


def test_the_image_and_the_subnet_of_the_anchor_are_allowed_where_those_of_the_nodes_are_others():
    assert _of("WhereTheAnchorIs", CONFIG) is None  # as the nodes', which may be in any subnet
    config = replace(CONFIG, anchor_image="ami-2", anchor_subnet="subnet-2", subnets={"use1-az1": "subnet-1"})
    assert _of("WhereTheAnchorIs", config)["Resource"] == [
        "arn:aws:ec2:us-east-1::image/ami-2",
        "arn:aws:ec2:us-east-1:*:subnet/subnet-2",
    ]
    config = replace(CONFIG, anchor_image="resolve:ssm:/aws/service/x:3")
    assert _of("ResolveItsImage", config)["Resource"] == ["arn:aws:ssm:us-east-1::parameter/aws/service/x"]


def test_a_backup_may_be_kept_below_the_name_of_this_controller_and_nowhere_else():
    config = replace(CONFIG, anchor_backup="s3://bucket/some/prefix/")
    assert _of("KeepItsBackup", config)["Resource"] == ["arn:aws:s3:::bucket/some/prefix/s1/*"]
    assert _of("ListItsBackup", config)["Resource"] == ["arn:aws:s3:::bucket"]
    prefixes = _of("ListItsBackup", config)["Condition"]["StringLike"]["s3:prefix"]
    assert prefixes == ["some/prefix/s1", "some/prefix/s1/*"]
    assert _of("KeepItsBackup", CONFIG) is None
    assert _of("KeepItsBackup", replace(CONFIG, anchor_backup="gs://bucket/a")) is None


def test_the_machine_itself_may_neither_rent_nor_end_an_anchor():
    config = replace(CONFIG, anchor_backup="s3://bucket/a")
    allowed = {action for each in own_statements(config, "s1") for action in each["Action"]}
    assert {action for action in allowed if not action.startswith("s3:")} == {"ec2:CreateTags"}


class _Listed:
    """EC2, as far as a listing goes: one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def pages(self, *_, **__):
        return [{"Instances": [{"InstanceId": each} for each in self.answers.pop(0)]}]


def test_an_anchor_has_ended_once_three_listings_in_a_row_lack_it(monkeypatch):
    monkeypatch.setattr(instance, "LOOK_S", 0.0)
    facts = {"region": "r", "token": "", "nonce": "n", "expires_unix": 0, "kind": "t", "user": "u", "python": "p"}
    record = HostRecord(**facts, instance="i-1")
    for answers, ended in (([[], [], []], True), ([[], [], ["i-1"]], False), ([["i-2"], ["i-2"], ["i-2"]], True)):
        assert asyncio.run(instance.has_ended(_Listed(*answers), record, "s1")) is ended
