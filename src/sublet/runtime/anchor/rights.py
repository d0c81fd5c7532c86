"""What `up --on aws` and the anchor's own role may do besides: rent one machine of this type, renew it and end it."""

from __future__ import annotations

from typing import Any

from sublet.runtime.anchor.instance import anchor_server
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, SERVER_TAG

__all__ = ["anchor_statements"]


def anchor_statements(config: AwsConfig, server: str) -> list[dict[str, Any]]:
    """To add to the policy of the nodes; `iam:PassRole` for the role of `anchor_profile` is the owner's to name."""
    name, region = anchor_server(server), config.regions[0]
    machines, disks = f"arn:aws:ec2:{region}:*:instance/*", f"arn:aws:ec2:{region}:*:volume/*"
    asked, found = {f"aws:RequestTag/{SERVER_TAG}": name}, {f"aws:ResourceTag/{SERVER_TAG}": name}
    of_type = {**asked, "ec2:InstanceType": [config.anchor_type]}
    launched = {**asked, "ec2:CreateAction": "RunInstances"}
    only_expiry = {"ForAllValues:StringEquals": {"aws:TagKeys": [EXPIRES_TAG]}}
    lead = ["ec2:TerminateInstances", "ec2:StartInstances", "ec2:ModifyInstanceAttribute"]
    return [
        _allow("LaunchTheAnchor", ["ec2:RunInstances"], [machines], {"StringEquals": of_type}),
        _allow("ItsDisk", ["ec2:RunInstances"], [disks], {"StringEquals": asked}),
        _allow("TagTheAnchor", ["ec2:CreateTags"], [machines, disks], {"StringEquals": launched}),
        _allow("RenewTheAnchor", ["ec2:CreateTags"], [machines], {"StringEquals": found, **only_expiry}),
        _allow("LeadTheAnchor", lead, [machines], {"StringEquals": found}),
    ]


def _allow(sid: str, actions: list[str], resources: list[str], condition: dict[str, Any]) -> dict[str, Any]:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources, "Condition": condition}
