"""Network, role and rights of a controller host in an empty account: subnet, security group and role, found or made.

Each is looked for by its name before it is made, so that the second time finds what the first one made, also where the
first was cut short.

Every choice is asked for at AWS, told, and written down with its reason: from then on the file counts, and a user
changes a line of it. The role and the security group cost nothing, are named after this controller, and stay for the
next time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sublet.errors import BadInput, MissingData, NoAccess, SubletError
from sublet.machine.files import FILES, Files
from sublet.market.catalogue import Catalogue, load_catalogue
from sublet.runtime.controller_host.backup import place_of
from sublet.runtime.controller_host.instance import anchor_server
from sublet.runtime.providers.aws.calls import Refusal, meaning
from sublet.runtime.providers.aws.check import narrow_policy
from sublet.runtime.providers.aws.config import ANCHOR_USD_PER_H, AwsConfig
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, SERVER_TAG
from sublet.runtime.providers.aws.offers import price_of

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


# Deep Learning AMIs with PyTorch, the newest first ("Finding the ID of a DLAMI"); Python is where their notes say.
STEM = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-{}/latest/ami-id"
IMAGES = tuple(STEM.format(f"{torch}-ubuntu-24.04") for torch in ("2.11", "2.10", "2.9", "2.8"))
PYTHON, LOGIN = "/opt/pytorch/bin/python", "ubuntu"
KINDS = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6e.xlarge")  # one GPU each; those of them that the region has
ANCHOR = "t3.small"
NEEDS = (  # of a controller, besides what PyTorch's image has
    "boto3 cryptography fastapi numpy pathspec prometheus_client pydantic pyyaml scipy sortedcontainers typer uvicorn"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A line of the file, and why it is so."""

    name: str
    value: Any
    why: str

    def __str__(self) -> str:
        value = json.dumps(self.value)
        if isinstance(self.value, Mapping):
            value = "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(each)}" for key, each in self.value.items()) + "}"
        return f"{self.name} = {value}  # {self.why}"


def region_from(found: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The one that the user's own tools would take; `found` is what boto3 found in ~/.aws/config."""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or found
    if not region:
        hint = "'aws configure' asks for one, or set AWS_REGION; or write aws.toml (docs/guides/rent-on-aws.md)"
        raise BadInput("AWS", "no region is set", hint=hint)
    return region


def choose(
    make: Make, region: str, server: str, *, credentials_sent: bool = False, catalogue: Catalogue | None = None
) -> list[Chosen]:
    """All settings of a controller on a controller host; NoAccess or BadInput where something cannot be had."""
    listed = [each for each in (catalogue or load_catalogue()).listings if each.region == region]
    if not (kinds := _kinds_among(each.instance_type for each in listed)):
        hint = "another AWS_REGION; or aws.toml with the types that you want (docs/guides/rent-on-aws.md)"
        raise BadInput(region, f"none of {', '.join(KINDS)} is listed there", hint=hint)
    image, named = _image(make, region)
    ground = place_for_it(make, region)
    if ground.subnets and not (kinds := _kinds_among(e.instance_type for e in listed if e.zone in ground.subnets)):
        zones = ", ".join(sorted({each.zone for each in listed if each.instance_type in KINDS}))
        why = f"has subnets in {', '.join(ground.subnets)}, where none of {', '.join(KINDS)} is listed"
        raise BadInput(ground.network, why, hint=f"make a subnet in one of {zones}")
    usd_per_h, of_price = _anchor_price(make, region)
    chosen = [
        Chosen(name="regions", value=[region], why="as AWS_REGION or ~/.aws/config says"),
        Chosen(name="instance_types", value=kinds, why="one GPU each; add others that jobs may want"),
        Chosen(name="image", value=image, why=f"{named}, as it is today"),
        Chosen(name="python", value=PYTHON, why="where that image has PyTorch"),
        Chosen(name="containers", value="docker", why="which that image has"),
        Chosen(name="anchor_type", value=ANCHOR, why="carries the controller"),
        Chosen(name="anchor_usd_per_h", value=usd_per_h, why=of_price),
        Chosen(name="anchor_user", value=LOGIN, why="the login of that image"),
        Chosen(name="anchor_install", value=NEEDS, why="what a controller imports"),
        Chosen(name="anchor_subnet", value=ground.subnet, why=ground.why),
    ]
    if ground.subnets:
        chosen.append(Chosen(name="subnets", value=ground.subnets, why="of nodes, by zone: no zone has a default one"))
    group = own_group(make, region, ground.network, server)
    chosen.append(Chosen(name="security_groups", value=[group], why="ssh by key from anywhere; all among its members"))
    if not credentials_sent:
        config = AwsConfig(**{each.name: _as_field(each.value) for each in chosen})
        why = "a role of its own, with the policy of 'sublet check --iam'"
        chosen.append(Chosen(name="anchor_profile", value=own_role(make, config, server), why=why))
    return chosen


def _kinds_among(types: Iterable[str]) -> list[str]:
    found = set(types)
    return [kind for kind in KINDS if kind in found]


def write_choices(path: Path, chosen: list[Chosen], *, files: Files = FILES) -> None:
    """The file, for users to edit."""
    head = "# Chosen by 'sublet up --on aws', because there was no such file. Change what you like; see docs/guides.\n"
    files.write(path, (head + "".join(f"{each}\n" for each in chosen)).encode())


def _image(make: Make, region: str) -> tuple[str, str]:
    """Its id, and the public parameter that names it."""
    try:
        answer = make("ssm", region).get_parameters(Names=list(IMAGES))
    except Exception as error:
        failure = meaning("ssm:GetParameters", error)
        if isinstance(failure, NoAccess):
            raise failure from error
        raise BadInput("ssm:GetParameters", str(failure).partition("\n")[0], hint=_OTHER_IMAGE) from error
    values = {each["Name"]: each["Value"] for each in answer.get("Parameters", ())}
    for name in IMAGES:
        if name in values:
            return str(values[name]), name
    raise MissingData(f"{IMAGES[0]} in {region}, or one for an older PyTorch", hint=_OTHER_IMAGE)


_OTHER_IMAGE = 'write aws.toml with image = "ami-..." (docs/guides/rent-on-aws.md)'


def _anchor_price(make: Make, region: str) -> tuple[float, str]:
    try:
        return float(price_of(make, region, ANCHOR)), "asked for today"
    except SubletError:
        return ANCHOR_USD_PER_H, "the list price in us-east-1: AWS does not say what it is here (pricing:GetProducts)"


def _as_field(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
