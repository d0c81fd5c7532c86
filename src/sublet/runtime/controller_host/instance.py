"""The controller host at EC2: found by its tag, launched once, started again where it was stopped, and ended."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from functools import cache
from typing import Any

from sublet import data
from sublet.errors import NoAnswer, Refused
from sublet.machine.wall import WALL
from sublet.runtime.controller_host.record import HostRecord
from sublet.runtime.providers.aws.calls import Calls, Refusal
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import (
    BLANK,
    EXPIRES_TAG,
    NODE_TAG,
    SERVER_TAG,
    client_token,
    expiry_tag,
    packages,
)

PREFIX = "anchor-"
BOOT_S = 1800  # for the laptop to come, before the machine ends by itself
ON_S, LOOK_S, LOOKS = 300.0, 1.0, 3
NEW_ROLE_S = 30.0
ALIVE = ("pending", "running", "stopping", "stopped")
# Waits for the host keys that a first boot makes, and proves each of them with the nonce on standard input.
PROVE = """
import glob, hashlib, hmac, sys, time
nonce = sys.stdin.read().encode()
for _ in range(600):
    if found := glob.glob("/etc/ssh/ssh_host_*_key.pub"):
        break
    time.sleep(0.2)
for path in found:
    key = " ".join(open(path).read().split()[:2])
    print(hmac.new(nonce, key.encode(), hashlib.sha256).hexdigest())
"""


def anchor_server(server: str) -> str:
    """The server name on its instance: not that of the controller's own nodes, of which it ends unknown ones."""
    return f"{PREFIX}{server}"


def is_anchor(server: str) -> bool:
    """Whether this is what a controller host says."""
    return server.startswith(PREFIX)


def launch_request(record: HostRecord, config: AwsConfig, *, server: str, home: str, key: str) -> dict[str, Any]:
    """RunInstances for the controller host; on demand, because it must not be reclaimed."""
    tags = {
        "Name": "sublet anchor",
        SERVER_TAG: anchor_server(server),
        NODE_TAG: "anchor",
        EXPIRES_TAG: expiry_tag(record.expires_unix, home),
    }
    listed = [{"Key": name, "Value": value} for name, value in tags.items()]
    request: dict[str, Any] = {
        "ImageId": config.anchor_image or config.image_in(record.region),
        "InstanceType": record.kind,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": client_token(record.token, "anchor"),
        "InstanceInitiatedShutdownBehavior": "terminate",  # until a controller lives there: see `stay_when_off`
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "UserData": _user_data(record, config, key),
        "TagSpecifications": [{"ResourceType": kind, "Tags": listed} for kind in ("instance", "volume")],
    }
    if config.anchor_subnet:
        request["SubnetId"] = config.anchor_subnet
    if config.security_groups:
        request["SecurityGroupIds"] = list(config.security_groups)
    if config.anchor_profile:
        request["IamInstanceProfile"] = {"Name": config.anchor_profile}
    return request


def _user_data(record: HostRecord, config: AwsConfig, key: str) -> str:
    values = {"USER": record.user, "PYTHON": record.python, "NONCE": record.nonce, "KEY": key, "PROVE": PROVE}
    values |= {"INSTALL": config.anchor_packages, "BOOT_S": str(BOOT_S)}
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    quoted["PACKAGES"] = packages(config.anchor_packages)
    return BLANK.sub(lambda blank: quoted[blank[1]], _template())


@cache
def _template() -> str:
    return data.bundled("aws/anchor.sh").read_text(encoding="utf-8")


async def find(calls: Calls, region: str, server: str) -> list[dict[str, Any]]:
    """Every controller host of this controller that is not ended."""
    filters = [
        {"Name": f"tag:{SERVER_TAG}", "Values": [anchor_server(server)]},
        {"Name": "instance-state-name", "Values": list(ALIVE)},
    ]
    rows = await calls.pages(region, "describe_instances", "Reservations", Filters=filters)
    return [row for group in rows for row in group["Instances"]]


async def has_ended(calls: Calls, record: HostRecord, server: str) -> bool:
    """Whether EC2 says so, three times: a listing may lag behind."""
    for _ in range(LOOKS):
        found = await find(calls, record.region, server)
        if any(row["InstanceId"] == record.instance for row in found):
            return False
        await asyncio.sleep(LOOK_S)
    return True


async def launch(calls: Calls, record: HostRecord, request: dict[str, Any]) -> HostRecord:
    """Asked for; the same one where it was asked for before."""
    until_s = WALL.monotonic() + NEW_ROLE_S
    while True:
        try:
            answer = await calls.call(record.region, "run_instances", **request)
            return replace(record, instance=answer["Instances"][0]["InstanceId"])
        except Refusal as error:  # a role that was made a moment ago is not known everywhere yet
            if "iam instance profile" not in error.why.lower() or WALL.monotonic() > until_s:
                raise
            await asyncio.sleep(LOOK_S)


async def wait_until_on(calls: Calls, record: HostRecord) -> HostRecord:
    """With its addresses; one that was stopped is started again."""
    deadline_s, started = WALL.monotonic() + ON_S, False
    while WALL.monotonic() < deadline_s:
        filters = [
            {"Name": "instance-id", "Values": [record.instance]}
        ]  # not by its id: a new one may not be listed yet
        rows = await calls.pages(record.region, "describe_instances", "Reservations", Filters=filters)
        row: dict[str, Any] = next((each for group in rows for each in group["Instances"]), {})
        state = row.get("State", {}).get("Name", "pending")
        if state == "running" and row.get("PrivateIpAddress"):
            inner = row["PrivateIpAddress"]
            return replace(record, address=row.get("PublicIpAddress") or inner, inner=inner)
        if state in ("shutting-down", "terminated"):
            why = (row.get("StateReason") or {}).get("Message", "")
            raise Refused(f"the controller host {record.instance} has ended {why}\n  next: sublet up --on aws")
        if state == "stopped" and not started:
            await calls.call(record.region, "start_instances", InstanceIds=[record.instance])
            started = True
        await asyncio.sleep(LOOK_S)
    raise NoAnswer(f"the start of {record.instance}", f"it is not running after {ON_S:g} s")


async def stay_when_off(calls: Calls, record: HostRecord) -> None:
    """From now on there is something to lose: a shutdown stops the machine, and its disk stays."""
    value = {"Value": "stop"}
    verb = "modify_instance_attribute"
    await calls.call(record.region, verb, InstanceId=record.instance, InstanceInitiatedShutdownBehavior=value)


async def end(calls: Calls, record: HostRecord, server: str) -> None:
    """Returns when EC2 confirms it; its disk goes with it."""
    if not record.instance:
        for row in await find(calls, record.region, server):
            record = replace(record, instance=row["InstanceId"])
            await end(calls, record, server)
        return
    await calls.call(record.region, "terminate_instances", InstanceIds=[record.instance])
    deadline_s = WALL.monotonic() + ON_S
    while any(row["InstanceId"] == record.instance for row in await find(calls, record.region, server)):
        if WALL.monotonic() > deadline_s:
            raise NoAnswer(f"the end of {record.instance}", "EC2 took the order and still shows it running")
        await asyncio.sleep(LOOK_S)
