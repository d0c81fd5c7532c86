"""The user's choices about renting on AWS: the file `aws.toml` in the state directory, or where SUBLET_AWS points."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sublet.domain.offer import Market
from sublet.domain.quantity import at_least, named, positive, whole
from sublet.errors import BadInput, InvalidValue, MissingData
from sublet.runtime.agent.dialing import address_from
from sublet.runtime.agent.nursery import PRELOAD
from sublet.runtime.file_sync.contained import ENGINES

METADATA_URL = "http://169.254.169.254"  # where every EC2 instance finds its own facts
ANCHOR_USD_PER_H = 0.0208  # the list price of a t3.small in us-east-1
LISTS = ("regions", "instance_types", "markets", "security_groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsConfig:
    """Regions, types, and how a node becomes one of ours."""

    regions: tuple[str, ...]
    instance_types: tuple[str, ...]
    image: str | Mapping[str, str]  # an AMI id, `resolve:ssm:NAME`, or one per region
    controller: str = ""  # where agents reach us: tls:host:port, or tcp: through a tunnel; "" = told by the host
    agents_port: int = 7070  # on this machine: on all its addresses with tls:, or on loopback, where the tunnel ends
    install: str = ""  # what pip installs on a node; over tls: Sublet itself comes from the controller; "" = nothing
    python: str = "python3"  # on the node
    ray: str = ""  # host:port of a Ray cluster that nodes join, too; `install` must bring Ray then; "" = none
    markets: tuple[Market, ...] = (Market.SPOT, Market.ON_DEMAND)
    subnets: Mapping[str, str] = field(default_factory=dict)  # zone id -> that of nodes there; {} = its default
    security_groups: tuple[str, ...] = ()
    instance_profile: str = ""  # a name; what jobs may do at AWS
    key_name: str = ""  # for ssh
    most_nodes: int | None = None  # of one offer, at once
    hazard_per_h: float = 0.0  # spot nodes taken per node-hour, where the user knows; AWS states no such figure
    boot_s: float = 180.0  # from RunInstances to Hello: a guess until measured
    own_users: bool = False  # each job runs as a user of its own, which reads neither the node's key nor other jobs
    containers: str = ""  # what the image has to run them: docker or podman, or none; "" = not known
    lease_s: float = 900.0  # a node that hears nothing for so long ends itself
    preload: tuple[str, ...] = PRELOAD
    anchor_type: str = "t3.small"  # of the machine that the controller lives on, where it does (`sublet up --on aws`)
    anchor_usd_per_h: float = ANCHOR_USD_PER_H  # what it costs
    anchor_image: str = ""  # "" = that of the nodes
    anchor_python: str = ""  # with what a controller needs; "" = as on the nodes
    anchor_install: str = ""  # what pip installs there; "" = the image has it
    anchor_user: str = "ubuntu"  # the login there
    anchor_profile: str = ""  # its instance profile: with the rights of a controller
    anchor_subnet: str = ""  # "" = the account's default
    anchor_backup: str = ""  # s3://bucket/prefix: where its state is copied to; "" = its disk has all
    metadata_url: str = METADATA_URL
    endpoint_url: str = ""  # "" = AWS; tests have their own

    def __post_init__(self) -> None:
        for name in ("regions", "instance_types", "markets"):
            if not getattr(self, name):
                raise InvalidValue(name, getattr(self, name), "at least one")
            for each in getattr(self, name):
                named(name, each)
        if unknown := [market for market in self.markets if market not in tuple(Market)]:
            raise InvalidValue("markets", unknown[0], " or ".join(Market))
        missing = [] if isinstance(self.image, str) else [r for r in self.regions if r not in self.image]
        if missing or not self.image:
            raise InvalidValue("image", self.image, "an AMI id or resolve:ssm:NAME, for " + ", ".join(self.regions))
        if self.containers not in ("", "none", *ENGINES):
            raise InvalidValue("containers", self.containers, f"{', '.join(ENGINES)}, none, or left out")
        if self.controller:
            address_from(self.controller)
        at_least("anchor_usd_per_h", self.anchor_usd_per_h, 0.0)
        whole("agents_port", self.agents_port, 1)
        if self.most_nodes is not None:
            whole("most_nodes", self.most_nodes, 1)
        at_least("hazard_per_h", self.hazard_per_h, 0.0)
        at_least("boot_s", self.boot_s, 0.0)
        positive("lease_s", self.lease_s)

    def no_containers(self) -> str:
        """Why a job cannot run in one on nodes of this image; empty where it can, or where that is not known."""
        if self.own_users:
            return "own_users = true in aws.toml, and containers need root on their node"
        return (
            "containers = none in aws.toml: the image has neither docker nor podman"
            if self.containers == "none"
            else ""
        )

    @property
    def anchor_needs(self) -> tuple[str, ...]:
        """Modules that a controller on a controller host imports with this file, and not with every one."""
        return ("obstore",) if self.anchor_backup else ()

    @property
    def anchor_packages(self) -> str:
        """The pip packages there, if any."""
        named_already = self.anchor_install.replace("=", " ").replace(">", " ").replace("<", " ").split()
        more = [name for name in self.anchor_needs if name not in named_already]
        return " ".join([self.anchor_install, *more]) if self.anchor_install else ""

    def image_in(self, region: str) -> str:
        """The image of nodes in this region."""
        return self.image if isinstance(self.image, str) else self.image[region]


def config_path(state_dir: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The path of the file."""
    return Path(environment.get("SUBLET_AWS") or state_dir / "aws.toml")


def read_config(path: Path) -> AwsConfig:
    """The file, or what is wrong with it."""
    try:
        facts: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "write it (docs/guides/rent-on-aws.md has one), set SUBLET_AWS, or let 'sublet up --on aws' choose"
        raise MissingData(path, hint=hint) from None
    except (OSError, ValueError) as error:
        raise BadInput(path, f"cannot be read ({error})", hint="see docs/guides/rent-on-aws.md") from error
    known = {each.name for each in fields(AwsConfig)}
    if unknown := sorted(facts.keys() - known):
        raise BadInput(path, f"there is no setting {unknown[0]!r}", hint="known: " + ", ".join(sorted(known)))
    for name in (*LISTS, "preload"):
        if name in facts:
            if not isinstance(facts[name], list):
                raise BadInput(path, f"{name} = {facts[name]!r} is not a list")
            facts[name] = tuple(facts[name])
    try:
        if "markets" in facts:
            facts["markets"] = tuple(Market(market) for market in facts["markets"])
        return AwsConfig(**facts)
    except (TypeError, ValueError) as error:
        raise BadInput(path, str(error), hint="see docs/guides/rent-on-aws.md") from error
