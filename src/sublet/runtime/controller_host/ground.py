"""Network and role of a controller host in an empty account: subnet, security group and role, found or made.

Each is looked for by its name before it is made, so that the second time finds what the first one made, also where the
first was cut short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from sublet.errors import BadInput, SubletError
from sublet.runtime.controller_host.rights import own_statements
from sublet.runtime.providers.aws.calls import Refusal, meaning
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import SERVER_TAG
from sublet.runtime.providers.aws.rights import narrow_policy

__all__ = ["Ground", "own_group", "own_role", "place_for_it", "renew_role", "role_name"]

SSH = 22
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
THERE = ("EntityAlreadyExists", "InvalidPermission.Duplicate", "InvalidGroup.Duplicate", "LimitExceeded")

Make = Callable[[str, str], Any]


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
