"""The narrowest rights for one state directory: these regions and types, and only nodes of this very controller.

`data/aws/iam-policy.json` is one policy for all; it lets each controller end what another one rented.
"""

from __future__ import annotations

from typing import Any

from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, SERVER_TAG

__all__ = ["narrow_policy"]

LOOKS = (
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "servicequotas:GetServiceQuota",
)


def narrow_policy(config: AwsConfig, server: str) -> dict[str, Any]:
    """An IAM policy that allows what `sublet up --provider aws` does with this file, and nothing more."""
    here = {"aws:RequestedRegion": list(config.regions)}
    asked, found = {f"aws:RequestTag/{SERVER_TAG}": server}, {f"aws:ResourceTag/{SERVER_TAG}": server}
    statements = [
        _allow("Look", LOOKS, ["*"], StringEquals=here),
        _allow("AskForPrices", ("pricing:GetProducts",), ["*"]),  # of all regions, from one
        _allow(
            "LaunchTheseTypesWithOurTag",
            ("ec2:RunInstances",),
            _arns(config, "instance/*"),
            StringEquals={**asked, "ec2:InstanceType": list(config.instance_types)},
        ),
        _allow("DisksWithOurTag", ("ec2:RunInstances",), _arns(config, "volume/*"), StringEquals=asked),
        _allow("LaunchFromAndInto", ("ec2:RunInstances",), _places(config)),
        _allow(
            "TagWhatIsLaunched",
            ("ec2:CreateTags",),
            _arns(config, "instance/*", "volume/*"),
            StringEquals={**asked, "ec2:CreateAction": "RunInstances"},
        ),
        {
            **_allow("RenewTheExpiryOfOurs", ("ec2:CreateTags",), _arns(config, "instance/*")),
            "Condition": {"StringEquals": found, "ForAllValues:StringEquals": {"aws:TagKeys": [EXPIRES_TAG]}},
        },
        _allow("EndOnlyOurs", ("ec2:TerminateInstances",), _arns(config, "instance/*"), StringEquals=found),
    ]
    if names := [name for region in config.regions if (name := _parameter(config.image_in(region)))]:
        arns = [f"arn:aws:ssm:{region}::parameter{name}" for region in config.regions for name in sorted(set(names))]
        statements.append(_allow("ResolveTheImage", ("ssm:GetParameters",), arns))
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(sid: str, actions: tuple[str, ...], resources: list[str], **condition: Any) -> dict[str, Any]:
    allowed = {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}
    return {**allowed, "Condition": condition} if condition else allowed


def _arns(config: AwsConfig, *kinds: str) -> list[str]:
    return [f"arn:aws:ec2:{region}:*:{kind}" for region in config.regions for kind in kinds]


def _places(config: AwsConfig) -> list[str]:
    """Images, networks and keys: those of the file where it names them, else any of the region."""
    groups = config.security_groups or ("*",)
    subnets = tuple(sorted(set(config.subnets.values()))) or ("*",)
    kinds = ["network-interface/*", "spot-instances-request/*"]
    kinds += [f"security-group/{group}" for group in groups] + [f"subnet/{subnet}" for subnet in subnets]
    kinds += [f"key-pair/{config.key_name}"] if config.key_name else []
    images = [image if (image := config.image_in(region)).startswith("ami-") else "*" for region in config.regions]
    named = [f"arn:aws:ec2:{region}::image/{image}" for region, image in zip(config.regions, images, strict=True)]
    return [*named, *_arns(config, *kinds)]


def _parameter(image: str) -> str:
    """`resolve:ssm:/aws/service/...:version` is read from there."""
    return image.removeprefix("resolve:ssm:").partition(":")[0] if image.startswith("resolve:ssm:") else ""
