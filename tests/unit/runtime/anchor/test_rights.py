"""The rights of an anchor: what its life asks of EC2 is allowed, for its own tag, and nothing without one."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from sublet.runtime.anchor import instance, keeper
from sublet.runtime.anchor.record import AnchorRecord
from sublet.runtime.anchor.rights import anchor_statements
from sublet.runtime.providers.aws.config import AwsConfig

CONFIG = AwsConfig(regions=("us-east-1",), instance_types=("g5.xlarge",), image="ami-1", anchor_profile="role")
VERBS = re.compile(r'"((?:run|start|terminate|create|modify)_[a-z_]+)"|client\.(create_[a-z_]+)\(')


def test_every_order_that_is_given_of_an_anchor_is_allowed_and_only_with_its_tag():
    statements = anchor_statements(CONFIG, "s1")
    allowed = {action for each in statements for action in each["Action"]}
    text = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (instance, keeper))
    given = {first or second for first, second in VERBS.findall(text)}
    assert {f"ec2:{verb.title().replace('_', '')}" for verb in given} == allowed
    for each in statements:
        tags = {
            name: value for name, value in each["Condition"]["StringEquals"].items() if name.endswith("sublet:server")
        }
        assert set(tags.values()) == {"anchor-s1"}, each["Sid"]


class _Listed:
    """EC2, as far as a listing goes: one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def pages(self, *_, **__):
        return [{"Instances": [{"InstanceId": each} for each in self.answers.pop(0)]}]


def test_an_anchor_has_ended_once_three_listings_in_a_row_lack_it(monkeypatch):
    monkeypatch.setattr(instance, "LOOK_S", 0.0)
    facts = {"region": "r", "token": "", "nonce": "n", "expires_unix": 0, "kind": "t", "user": "u", "python": "p"}
    record = AnchorRecord(**facts, instance="i-1")
    for answers, ended in (([[], [], []], True), ([[], [], ["i-1"]], False), ([["i-2"], ["i-2"], ["i-2"]], True)):
        assert asyncio.run(instance.has_ended(_Listed(*answers), record, "s1")) is ended
