"""Whether AWS will let us rent: credentials, regions, rights, quotas and the clock, each asked for without cost.

`data/aws/iam-policy.json` is one policy for all; it lets each controller end what another one rented.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from sublet.domain.offer import Market, Offer
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import NoAccess, SubletError
from sublet.market.catalogue import load_catalogue
from sublet.runtime.providers.aws.calls import Refusal, expiry_of, meaning
from sublet.runtime.providers.aws.config import AwsConfig
from sublet.runtime.providers.aws.instances import EXPIRES_TAG, SERVER_TAG, InstanceRecord, launch_request
from sublet.runtime.providers.aws.offers import price_of

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


EXPIRES_SOON_H = 24.0
SKEW_S = 60.0  # EC2 refuses requests that are five minutes off
QUOTAS = {  # vCPUs; Service Quotas, service "ec2"
    ("g", Market.ON_DEMAND): "L-DB2E81BA",
    ("g", Market.SPOT): "L-3819A6DF",
    ("p", Market.ON_DEMAND): "L-417A185B",
    ("p", Market.SPOT): "L-7212CCBC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. `ok` None = could not be looked at, and is not needed."""

    name: str
    ok: bool | None
    text: str
    hint: str = ""


def aws_findings(
    make: Callable[[str, str], Any], config: AwsConfig, offers: tuple[Offer, ...], now: datetime, *, server: str
) -> Iterator[Finding]:
    """In the order in which things must be right; `server` is whose nodes they would be, which rights may depend on."""
    first = config.regions[0]
    known = yield from _identity(make, first, now)
    if not known:
        return
    for region in config.regions:
        yield _region(make, region)
    yield _asked_price(make, offers)
    yield _containers(config)
    for offer in {(offer.region, offer.market): offer for offer in offers}.values():
        yield _may_launch(make, config, offer, server)
        yield _quota(make, offer)


def _identity(make: Callable[[str, str], Any], region: str, now: datetime) -> Generator[Finding, None, bool]:
    """Our identity; whether it is known."""
    try:
        client = make("sts", region)
        answer = client.get_caller_identity()
    except Exception as error:  # noqa: BLE001 - `meaning` sorts them
        failure = meaning("get_caller_identity", error)
        yield _failure("credentials", failure)
        return False
    yield Finding(name="credentials", ok=True, text=f"{answer['Arn']} of account {answer['Account']}")
    yield _expiry(expiry_of(client), now)
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date:
        skew_s = (now - parsedate_to_datetime(date)).total_seconds()
        hint = "" if abs(skew_s) < SKEW_S else "set the clock (timedatectl set-ntp true)"
        yield Finding(name="clock", ok=abs(skew_s) < SKEW_S, text=f"{skew_s:+.0f} s against AWS", hint=hint)
    return True


def _expiry(until: datetime | None, now: datetime) -> Finding:
    if until is None:
        return Finding(name="expiry", ok=True, text="the credentials do not expire by themselves")
    hours = (until - now).total_seconds() / SECONDS_PER_H
    text = f"the credentials end at {until.astimezone(UTC):%Y-%m-%d %H:%M} UTC, in {hours:.1f} h"
    if hours > EXPIRES_SOON_H:
        return Finding(name="expiry", ok=True, text=text)
    hint = "a run beyond that needs credentials that renew themselves: a role, or an SSO session"
    return Finding(name="expiry", ok=hours > 0, text=text, hint=hint)


def _region(make: Callable[[str, str], Any], region: str) -> Finding:
    try:
        zones = make("ec2", region).describe_availability_zones()["AvailabilityZones"]
    except Exception as error:  # noqa: BLE001 - as above
        return _failure(f"region {region}", meaning("describe_availability_zones", error))
    return Finding(name=f"region {region}", ok=True, text=f"{len(zones)} zones")


def _asked_price(make: Callable[[str, str], Any], offers: tuple[Offer, ...]) -> Finding:
    """Whether we are told what an instance costs on demand; a note where we are not."""
    offer = max(offers, key=lambda each: each.market is Market.ON_DEMAND)
    name, listed = "prices on demand", f"the list of {_day_of(offer)} has USD {offer.price.usd_per_h:g}/h"
    try:
        usd_per_h = price_of(make, offer.region, offer.instance_type)
    except SubletError as error:
        text = f"cannot be asked for: {str(error).partition(chr(10))[0]}; {listed}"
        return Finding(name=name, ok=None, text=text, hint="allow pricing:GetProducts; else those of the list count")
    text = f"{offer.instance_type} in {offer.region} costs USD {usd_per_h}/h today"
    return Finding(name=name, ok=True, text=f"{text}; {listed}" if offer.market is Market.ON_DEMAND else text)


def _containers(config: AwsConfig) -> Finding:
    """By what is known of the image; nothing is started for it."""
    if why := config.no_containers():
        return Finding(name="containers", ok=None, text=f"jobs with an image_id are refused: {why}")
    if config.containers:
        return Finding(name="containers", ok=True, text=f"the image has {config.containers}, as aws.toml says")
    hint = '\'sublet check --for-real\' tries; then write containers = "docker", "podman" or "none" into aws.toml'
    return Finding(name="containers", ok=None, text="whether the image has docker or podman is not known", hint=hint)


def _day_of(offer: Offer) -> str:
    return load_catalogue().quote(offer.id).as_of.isoformat()


def _may_launch(make: Callable[[str, str], Any], config: AwsConfig, offer: Offer, server: str) -> Finding:
    """A launch that is meant not to happen."""
    name = f"launch {offer.region} {offer.market}"
    record = InstanceRecord(
        node_id="check",
        offer_id=offer.id,
        token="check",  # noqa: S106 - it opens nothing
        region=offer.region,
        zone="",
        began_s=0.0,
        expires_unix=0,
    )
    request = launch_request(record, offer, config, server=server, zone_name="")
    del request["ClientToken"]
    try:
        make("ec2", offer.region).run_instances(**request, DryRun=True)
    except Exception as error:  # noqa: BLE001 - as above
        failure = meaning("run_instances", error)
        if isinstance(failure, Refusal) and failure.code == "DryRunOperation":
            return Finding(name=name, ok=True, text=f"{offer.instance_type} may be launched (asked with DryRun)")
        return _failure(name, failure)
    return Finding(name=name, ok=None, text="EC2 did not say whether it may be launched")


def _quota(make: Callable[[str, str], Any], offer: Offer) -> Finding:
    name, family = f"quota {offer.region} {offer.market}", offer.instance_type[:1]
    code = QUOTAS.get((family, offer.market))
    if code is None:
        return Finding(name=name, ok=None, text=f"the quota of {offer.instance_type} is not known by its code")
    try:
        answer = make("service-quotas", offer.region).get_service_quota(ServiceCode="ec2", QuotaCode=code)
        vcpus = float(answer["Quota"]["Value"])
    except Exception as error:  # noqa: BLE001 - as above
        text = f"cannot be read: {meaning('get_service_quota', error)}".partition("\n")[0]
        return Finding(name=name, ok=None, text=text, hint="allow servicequotas:GetServiceQuota to see it here")
    hint = "" if vcpus > 0 else f"ask for more in Service Quotas, code {code}"
    return Finding(name=name, ok=vcpus > 0, text=f"{vcpus:g} vCPUs of {family.upper()} instances", hint=hint)


def _failure(name: str, failure: SubletError) -> Finding:
    hint = failure.hint if isinstance(failure, NoAccess) else ""
    return Finding(name=name, ok=False, text=str(failure).partition("\n")[0], hint=hint)
