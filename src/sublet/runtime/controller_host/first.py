"""From an account and nothing else to an `aws.toml`: what `sublet up --on aws` chooses where there is none, and says.

Every choice is asked for at AWS, told, and written down with its reason: from then on the file counts, and a user
changes a line of it. The role and the security group cost nothing, are named after this controller, and stay for the
next time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.errors import BadInput, MissingData, NoAccess, SubletError
from sublet.machine.files import FILES, Files
from sublet.market.catalogue import Catalogue, load_catalogue
from sublet.runtime.controller_host.instance import own_group, own_role, place_for_it
from sublet.runtime.providers.aws.calls import meaning
from sublet.runtime.providers.aws.config import ANCHOR_USD_PER_H, AwsConfig
from sublet.runtime.providers.aws.offers import price_of

__all__ = ["IMAGES", "choose", "region_from", "write_choices"]

# Deep Learning AMIs with PyTorch, the newest first ("Finding the ID of a DLAMI"); Python is where their notes say.
STEM = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-{}/latest/ami-id"
IMAGES = tuple(STEM.format(f"{torch}-ubuntu-24.04") for torch in ("2.11", "2.10", "2.9", "2.8"))
PYTHON, LOGIN = "/opt/pytorch/bin/python", "ubuntu"
KINDS = ("g4dn.xlarge", "g5.xlarge", "g6.xlarge", "g6e.xlarge")  # one GPU each; those of them that the region has
ANCHOR = "t3.small"
NEEDS = (  # of a controller, besides what PyTorch's image has
    "boto3 cryptography fastapi numpy pathspec prometheus_client pydantic pyyaml scipy sortedcontainers typer uvicorn"
)

Make = Callable[[str, str], Any]


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
