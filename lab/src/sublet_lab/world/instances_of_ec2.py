"""Instances of EC2 in memory: what EC2 knows of each, where they can be had, and which of them a filter means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sublet.domain.offer import Market, Offer
from sublet_lab.world.cloud import Instance

REGION, KIND = "us-east-1", "g4dn.xlarge"
ZONES = {"use1-az1": "us-east-1a", "use1-az2": "us-east-1b"}  # id -> name


@dataclass(eq=False)
class Ec2Instance(Instance):
    """With what EC2 itself knows of it."""

    id: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    spot: bool = False
    why: str = ""  # StateReason
    gone_s: float = math.inf  # "terminated" from then on
    shown_s: float | None = None  # when it was first listed as ended
    end_untold: bool = False  # the question for the time of its end had no answer


def in_zones(offers: Sequence[Offer]) -> list[Offer]:
    """Spot in two zones, on demand in one."""
    found = []
    for offer in offers:
        for zone in list(ZONES)[: 2 if offer.market is Market.SPOT else 1]:
            name = f"aws:{zone}:{offer.market}"
            found.append(replace(offer, id=name, cloud="aws", region=REGION, zone=zone, instance_type=KIND))
    return found


def fits(instance: Ec2Instance, wanted: Mapping[str, Any]) -> bool:
    """Whether one filter of a listing means it."""
    name, values = wanted["Name"], wanted["Values"]
    if name == "instance-id":
        return instance.id in values
    return instance.tags.get(name.removeprefix("tag:")) in values
