"""Kinds of cluster worth weighing: markets, mixtures of them, zones, and places to keep checkpoints.

Of offers that differ in price only the cheapest counts: it is as fast and as risky as the others. For a mixture of spot
and on demand two prices matter, so all places stay that no other beats in both. Zones are those of one region whose
spot prices are lowest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from sublet.advise.checkpointing import Keeper
from sublet.advise.hazard import Reclaims, reclaims_of
from sublet.advise.losses import zones_in
from sublet.advise.speed import Machine
from sublet.domain.offer import Market, Offer
from sublet.solve.arrays import Floats

SPOT_KEEPERS: tuple[Keeper, ...] = ("storage", "peers", "anchors")
STEADY = (1, 2, 4, "half")  # nodes on demand in a mixture
MOST_ZONES = 3
# List prices for traffic between zones of one region: AWS bills 0.01 on each side, Google 0.01 once, Azure nothing.
BETWEEN_ZONES_USD_PER_GB: Mapping[str, float] = MappingProxyType({"aws": 0.02, "gcp": 0.01, "azure": 0.0})
UNKNOWN_USD_PER_GB = 0.02  # as much as the dearest of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of cluster: any number of nodes, of one offer or of several that are the same machine."""

    offer: Offer  # on demand where some nodes are, else the spot offer of the first zone
    spots: tuple[Offer, ...] = ()  # one for each zone
    keeper: Keeper = "nothing"
    machine: int
    reclaims: Reclaims | None = None
    steady: int | str = 0  # nodes on demand: so many, or half
    together: bool = False  # in one zone of several at a time

    @property
    def zones(self) -> int:
        """In how many the nodes may be."""
        return max(len(self.spots), 1)

    @property
    def spread(self) -> bool:
        """Whether they are in several at once."""
        return len(self.spots) > 1 and not self.together

    def steady_of(self, nodes_N: Floats) -> Floats:
        """How many of the nodes cannot be reclaimed."""
        if not self.spots:
            return nodes_N
        return np.ceil(nodes_N / 2.0) if self.steady == "half" else np.full(len(nodes_N), float(self.steady))

    def least(self) -> int:
        """The smallest such cluster; two and half of two are one and the same."""
        spot = len(self.spots) if self.spread else 1
        if self.steady == "half":
            return max(3, 2 * spot)
        return int(self.steady) + spot


def between_zones_usd_per_gb(cloud: str) -> float:
    """Price of a gigabyte from one zone to another of the same region."""
    return BETWEEN_ZONES_USD_PER_GB.get(cloud, UNKNOWN_USD_PER_GB)


class _Place(NamedTuple):
    """Spot nodes in one zone or several, and nodes on demand beside them."""

    spots: tuple[Offer, ...]
    on_demand: Offer | None
    spot_usd_per_h: float
    on_demand_usd_per_h: float


def rows_from_offers(offers: Sequence[Offer]) -> tuple[list[Row], list[Machine]]:
    """All that are worth weighing, and the machines that they are. O(n log n)."""
    machines: dict[Machine, int] = {}
    cheapest: dict[tuple[int, float], Offer] = {}
    twins: dict[str, Offer] = {}
    spots: dict[tuple[int, float, Reclaims], list[Offer]] = defaultdict(list)
    for offer in offers:
        kind = Machine(
            offer.gpu, offer.gpus_per_node, gbit_per_s(offer.cloud, offer.instance_type, offer.gpus_per_node)
        )
        machine = machines.setdefault(kind, len(machines))
        if offer.market is Market.SPOT:
            spots[machine, offer.minimum_billing_s, _reclaims(offer)].append(offer)
            continue
        key = (machine, offer.minimum_billing_s)
        if key not in cheapest or offer.price < cheapest[key].price:
            cheapest[key] = offer
        twins[offer.id.removesuffix(Market.ON_DEMAND)] = offer
    rows = [Row(offer=offer, machine=machine) for (machine, _), offer in cheapest.items()]
    for (machine, _, taken), listed in spots.items():
        rows += _spot_rows(machine, taken, listed, twins)
    return rows, list(machines)


def _spot_rows(machine: int, taken: Reclaims, offers: Iterable[Offer], twins: Mapping[str, Offer]) -> list[Row]:
    """Rows of offers that are alike in all but place and price."""
    regions: dict[tuple[str, str, str], list[Offer]] = defaultdict(list)
    single, all_zones = [], []
    for offer in offers:
        single.append(_place((offer,), twins))
        if offer.zone:
            regions[offer.cloud, offer.region, offer.instance_type].append(offer)
        elif offer.region:
            all_zones.append(offer)
    rows = []
    for zones in range(1, MOST_ZONES + 1):
        places = single
        if zones > 1:
            chosen = [sorted(own, key=lambda offer: (offer.price, offer.id))[:zones] for own in regions.values()]
            chosen += [[offer] * zones for offer in all_zones if zones_in(taken.traces, offer.region) >= zones]
            places = [_place(tuple(own), twins) for own in chosen if len(own) == zones]
        if not places:
            break
        for place in _best_alone(places):
            row = Row(offer=place.spots[0], spots=place.spots, machine=machine, reclaims=taken)
            rows += [replace(row, keeper=way) for way in SPOT_KEEPERS]
            if zones > 1:
                rows.append(replace(row, keeper="storage", together=True))
        for place in _best_mixed(places):
            if place.on_demand is not None:
                row = Row(offer=place.on_demand, spots=place.spots, machine=machine, reclaims=taken, keeper="nodes")
                rows += [replace(row, steady=steady) for steady in STEADY]
    return rows


def _place(spots: tuple[Offer, ...], twins: Mapping[str, Offer]) -> _Place:
    beside = [twin for spot in spots if (twin := twins.get(spot.id.removesuffix(Market.SPOT))) is not None]
    on_demand = min(beside, key=lambda offer: offer.price, default=None)
    mean = sum(offer.price.usd_per_h for offer in spots) / len(spots)
    return _Place(spots, on_demand, mean, on_demand.price.usd_per_h if on_demand else float("inf"))


def _best_alone(places: Iterable[_Place]) -> list[_Place]:
    """The cheapest of each price for traffic between zones."""
    best: dict[float, _Place] = {}
    for place in places:
        key = between_zones_usd_per_gb(place.spots[0].cloud) if len(place.spots) > 1 else 0.0
        if key not in best or place.spot_usd_per_h < best[key].spot_usd_per_h:
            best[key] = place
    return list(best.values())


def _best_mixed(places: Iterable[_Place]) -> list[_Place]:
    """Those that no other beats in both prices."""
    front: list[_Place] = []
    for place in sorted(places, key=lambda place: (place.spot_usd_per_h, place.on_demand_usd_per_h)):
        if not front or place.on_demand_usd_per_h < front[-1].on_demand_usd_per_h:
            front.append(place)
    return front


def _reclaims(offer: Offer) -> Reclaims:
    """Reclaims as the offer states them, else as traces do; these know of no notice."""
    traced = replace(reclaims_of(offer.cloud, offer.gpu), notice_s=offer.notice_s)
    if not offer.hazard_per_h:
        return traced
    return replace(traced, per_h=offer.hazard_per_h, share=offer.reclaim_share, source="stated by the offer", traces=())


UNKNOWN_GBIT_PER_S = ((8, 100.0), (2, 25.0), (1, 10.0))  # by GPUs of the node, at least; slow rather than fast

# As documented, Gbit/s; "up to" where AWS says so: long transfers of the smallest types are slower.
_SIZES: Mapping[str, str] = {
    "aws": "g4dn: xlarge 25 2xlarge 25 4xlarge 25 8xlarge 50 12xlarge 50 16xlarge 50 metal 100; "
    "g5: xlarge 10 2xlarge 10 4xlarge 25 8xlarge 25 16xlarge 25 12xlarge 40 24xlarge 50 48xlarge 100; "
    "g5g: xlarge 10 2xlarge 10 4xlarge 10 8xlarge 12 16xlarge 25 metal 25; "
    "g6: xlarge 10 2xlarge 10 4xlarge 25 8xlarge 25 16xlarge 25 12xlarge 40 24xlarge 50 48xlarge 100; "
    "gr6: 4xlarge 25 8xlarge 25; "
    "g6e: xlarge 20 2xlarge 20 4xlarge 20 8xlarge 25 16xlarge 35 12xlarge 100 24xlarge 200 48xlarge 400; "
    "p3: 2xlarge 10 8xlarge 10 16xlarge 25; p3dn: 24xlarge 100; p4d: 24xlarge 400; p4de: 24xlarge 400; "
    "p5: 4xlarge 100 48xlarge 3200; p5e: 48xlarge 3200; p5en: 48xlarge 3200; p6-b200: 48xlarge 3200; "
    "p6-b300: 48xlarge 6400",
    "gcp": "a2-highgpu: 1g 24 2g 32 4g 50 8g 100; a2-megagpu: 16g 100; a2-ultragpu: 1g 24 2g 32 4g 50 8g 100; "
    "a3-highgpu: 1g 25 2g 50 4g 100 8g 1000; a3-megagpu: 8g 1800; a3-ultragpu: 8g 3600; a4-highgpu: 8g 3600; "
    "g2-standard: 8 16 24 32 48 50 96 100; n1-highmem: 8 16 16 32 32 32 64 32",
    "azure": "Standard: NC4as_T4_v3 8 NC8as_T4_v3 8 NC16as_T4_v3 8 NC64as_T4_v3 32 NC24ads_A100_v4 20 "
    "NC48ads_A100_v4 40 NC96ads_A100_v4 80 NC40ads_H100_v5 40 NC80adis_H100_v5 80 ND40rs_v2 100 ND96asr_v4 1600 "
    "ND96amsr_A100_v4 1600 ND96isr_H100_v5 3200",
}
_BETWEEN = {"aws": ".", "gcp": "-", "azure": "_"}


def gbit_per_s(cloud: str, instance_type: str, gpus: int) -> float:
    """Between two such nodes: as clouds document it, and a guess for the rest, since price lists do not say.

    >>> gbit_per_s("aws", "g5.xlarge", 1), gbit_per_s("nobody", "x8", 8)
    (10.0, 100.0)
    """
    known = _DOCUMENTED.get((cloud, instance_type))
    if known is not None:
        return known
    return next(speed for least, speed in UNKNOWN_GBIT_PER_S if gpus >= least)


def _parse_sizes() -> dict[tuple[str, str], float]:
    found = {}
    for cloud, families in _SIZES.items():
        for family in families.split("; "):
            name, _, sizes = family.partition(": ")
            words = sizes.split()
            for size, speed in zip(words[::2], words[1::2], strict=True):
                found[cloud, f"{name}{_BETWEEN[cloud]}{size}"] = float(speed)
    return found


_DOCUMENTED = MappingProxyType(_parse_sizes())
