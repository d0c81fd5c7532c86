"""The controller host at EC2: found by its tag, launched once, started again where it was stopped, and ended.

Each is looked for by its name before it is made, so that the second time finds what the first one made, also where the
first was cut short.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from sublet import data
from sublet.errors import BadInput, NoAnswer, Refused, SubletError
from sublet.machine.wall import WALL
from sublet.runtime.controller_host.backup import place_of
from sublet.runtime.controller_host.record import HostRecord
from sublet.runtime.providers.aws.calls import Calls, Refusal, meaning
from sublet.runtime.providers.aws.check import narrow_policy
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

__all__ = [
    "anchor_server",
    "anchor_statements",
    "end",
    "find",
    "has_ended",
    "is_anchor",
    "launch",
    "launch_request",
    "own_group",
    "own_role",
    "own_statements",
    "place_for_it",
    "renew_role",
    "role_name",
    "stay_when_off",
    "wait_until_on",
]

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


OBJECTS = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
SSH = 22
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
THERE = ("EntityAlreadyExists", "InvalidPermission.Duplicate", "InvalidGroup.Duplicate", "LimitExceeded")
Make = Callable[[str, str], Any]


def anchor_statements(config: AwsConfig, server: str) -> list[dict[str, Any]]:
    """To add to the policy of the nodes; `iam:PassRole` for the role of `anchor_profile` is the owner's to name."""
    name, region = anchor_server(server), config.regions[0]
    machines, disks = f"arn:aws:ec2:{region}:*:instance/*", f"arn:aws:ec2:{region}:*:volume/*"
    asked, found = {f"aws:RequestTag/{SERVER_TAG}": name}, {f"aws:ResourceTag/{SERVER_TAG}": name}
    of_type = {**asked, "ec2:InstanceType": [config.anchor_type]}
    launched = {**asked, "ec2:CreateAction": "RunInstances"}
    lead = ["ec2:TerminateInstances", "ec2:StartInstances", "ec2:ModifyInstanceAttribute"]
    return [
        _allow("LaunchTheAnchor", ["ec2:RunInstances"], [machines], {"StringEquals": of_type}),
        _allow("ItsDisk", ["ec2:RunInstances"], [disks], {"StringEquals": asked}),
        *_place(config, region),
        _allow("TagTheAnchor", ["ec2:CreateTags"], [machines, disks], {"StringEquals": launched}),
        _allow("LeadTheAnchor", lead, [machines], {"StringEquals": found}),
        *own_statements(config, server),
    ]


def own_statements(config: AwsConfig, server: str) -> list[dict[str, Any]]:
    """The machine's own rights among these: to say that it is wanted, and to write its backup."""
    machines = f"arn:aws:ec2:{config.regions[0]}:*:instance/*"
    found = {f"aws:ResourceTag/{SERVER_TAG}": anchor_server(server)}
    only_expiry = {"ForAllValues:StringEquals": {"aws:TagKeys": [EXPIRES_TAG]}}
    renew = _allow("RenewTheAnchor", ["ec2:CreateTags"], [machines], {"StringEquals": found, **only_expiry})
    return [renew, *_backup(config, server)]


def _place(config: AwsConfig, region: str) -> list[dict[str, Any]]:
    """Its image and its subnet, where the policy of the nodes does not have them."""
    places, statements = list[str](), list[dict[str, Any]]()
    if config.anchor_image:
        image = config.anchor_image if config.anchor_image.startswith("ami-") else "*"
        places.append(f"arn:aws:ec2:{region}::image/{image}")
    if config.subnets:  # else those of the nodes may be any
        places.append(f"arn:aws:ec2:{region}:*:subnet/{config.anchor_subnet or '*'}")
    if places:
        statements.append(_allow("WhereTheAnchorIs", ["ec2:RunInstances"], places))
    if config.anchor_image.startswith("resolve:ssm:"):
        name = config.anchor_image.removeprefix("resolve:ssm:").partition(":")[0]
        resource = f"arn:aws:ssm:{region}::parameter{name}"
        statements.append(_allow("ResolveItsImage", ["ssm:GetParameters"], [resource]))
    return statements


def _backup(config: AwsConfig, server: str) -> list[dict[str, Any]]:
    """In a bucket of S3: objects below the name of this controller, and no others."""
    scheme, _, rest = place_of(config.anchor_backup, server).partition("://")
    if not config.anchor_backup or scheme != "s3":
        return []
    bucket, _, prefix = rest.partition("/")
    below = {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}}
    return [
        _allow("ListItsBackup", ["s3:ListBucket"], [f"arn:aws:s3:::{bucket}"], below),
        _allow("KeepItsBackup", OBJECTS, [f"arn:aws:s3:::{bucket}/{prefix}/*"]),
    ]


def _allow(
    sid: str, actions: list[str], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    allowed = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**allowed, "Condition": condition} if condition else allowed


class Ground(NamedTuple):
    """Network and role of a controller host and its nodes."""

    subnet: str  # of the controller host
    network: str
    why: str
    subnets: Mapping[str, str]  # of nodes, by zone id, where no zone has a default one


def place_for_it(make: Make, region: str) -> Ground:
    """In the account's default network, or in its only one."""
    with _asking("ec2:DescribeSubnets"):
        client = make("ec2", region)
        networks = client.describe_vpcs()["Vpcs"]
        usual = [each for each in networks if each.get("IsDefault")] or networks
        found = client.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [each["VpcId"] for each in usual]}])
        subnets = sorted(found["Subnets"], key=lambda each: (each["AvailabilityZone"], each["SubnetId"]))
    if len(usual) != 1 or not subnets:
        why = "it has no default network" if len(usual) != 1 else f"{usual[0]['VpcId']} has no subnet"
        hint = "'aws ec2 create-default-vpc' makes one; or write aws.toml with anchor_subnet and security_groups"
        raise BadInput(f"the account in {region}", why, hint=hint)
    default = bool(usual[0].get("IsDefault"))
    of = "the account's default network" if default else "the account's only network"
    zones = {} if default else {str(each["AvailabilityZoneId"]): str(each["SubnetId"]) for each in reversed(subnets)}
    network = str(usual[0]["VpcId"])
    return Ground(str(subnets[0]["SubnetId"]), network, f"of {of}, {network}", dict(sorted(zones.items())))


def own_group(make: Make, region: str, network: str, server: str) -> str:
    """Its members reach one another; ssh comes in from anywhere, with a key."""
    name = f"sublet-{server}"
    with _asking("ec2:CreateSecurityGroup"):
        client = make("ec2", region)
        filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [network]}]
        found = client.describe_security_groups(Filters=filters)["SecurityGroups"]
        if found:
            group = str(found[0]["GroupId"])
        else:
            tags = [{"ResourceType": "security-group", "Tags": [{"Key": SERVER_TAG, "Value": server}]}]
            text = "Sublet: a controller host and its nodes"
            made = client.create_security_group(GroupName=name, Description=text, VpcId=network, TagSpecifications=tags)
            group = str(made["GroupId"])
        for rule in (
            {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
            {"IpProtocol": "tcp", "FromPort": SSH, "ToPort": SSH, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},
        ):
            _unless_there(client.authorize_security_group_ingress, GroupId=group, IpPermissions=[rule])
    return group


def own_role(make: Make, config: AwsConfig, server: str) -> str:
    """The name of an instance profile with the rights of this controller, and no others."""
    name = role_name(server)
    with _asking("iam:CreateRole", hint="--send-credentials sends your own along instead"):
        client = make("iam", config.regions[0])
        _unless_there(client.create_role, RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST))
        _put_policy(client, config, server)
        _unless_there(client.create_instance_profile, InstanceProfileName=name)
        # A profile has room for one role, and says so where it has ours.
        _unless_there(client.add_role_to_instance_profile, InstanceProfileName=name, RoleName=name)
    return name


def role_name(server: str) -> str:
    """The name of the role that is made for a controller host, and of its profile."""
    return f"sublet-anchor-{server}"


def renew_role(make: Make, config: AwsConfig, server: str) -> None:
    """The role that was made has the rights that the file asks for by now; BadInput where that may not be done."""
    with _asking("iam:PutRolePolicy", hint="'sublet check --iam' prints what the role is to have"):
        _put_policy(make("iam", config.regions[0]), config, server)


def _put_policy(client: Any, config: AwsConfig, server: str) -> None:
    policy = narrow_policy(config, server)
    policy["Statement"] += own_statements(config, server)
    client.put_role_policy(RoleName=role_name(server), PolicyName="sublet", PolicyDocument=json.dumps(policy))


def _unless_there(verb: Callable[..., Any], **request: Any) -> None:
    try:
        verb(**request)
    except Exception as error:
        failure = meaning(verb.__name__, error)
        if not isinstance(failure, Refusal) or failure.code not in THERE:
            raise


@contextmanager
def _asking(what: str, hint: str = "write aws.toml yourself: docs/guides/laptop-to-aws.md") -> Iterator[None]:
    """Refusals of AWS are told with the next step."""
    try:
        yield
    except SubletError:
        raise
    except Exception as error:
        failure = meaning(what, error)
        raise BadInput("AWS", str(failure).partition("\n")[0], hint=hint) from error
