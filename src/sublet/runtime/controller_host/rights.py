"""Extra rights of `up --on aws` and of the controller host's own role: rent, renew and end one machine; its backup."""

from __future__ import annotations

from typing import Any

from sublet.runtime.controller_host.backup import place_of
from sublet.runtime.controller_host.instance import anchor_server
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, SERVER_TAG

__all__ = ["anchor_statements", "own_statements"]

OBJECTS = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


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
