"""Offers of AWS: those of the bundled list for chosen regions and types, and which prices to believe.

The on-demand price of a node is from the list, or was asked for before this start (`asked_prices`): another price is
another list of offers, which the log is told. Today's price of a spot node comes as PriceChanged, once it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import Infeasible
from sublet.market.catalogue import Catalogue
from sublet.market.hygiene import PLAUSIBLE_USD_PER_GPU_H
from sublet.runtime.providers.aws.asked_prices import Asked, Place
from sublet.runtime.providers.aws.config import AwsConfig

__all__ = ["NOTICE_S", "doubt", "listed_prices", "newest", "offers_from"]

NOTICE_S = 120.0  # what AWS documents for spot interruptions; best effort
WIND_DOWN_S = 60.0  # to save, to leave, and until EC2 says "shutting-down"


def listed_prices(config: AwsConfig, catalogue: Catalogue) -> dict[Place, tuple[Price, str]]:
    """(region, type) -> what the list asks for it on demand, and of which day that is."""
    found: dict[Place, tuple[Price, str]] = {}
    for region in config.regions:
        for kind in config.instance_types:
            for quote in catalogue.quotes(cloud="aws", region=region, instance_type=kind, market=Market.ON_DEMAND):
                known = found.get((region, kind))
                if known is None or quote.offer.price > known[0]:
                    found[region, kind] = (quote.offer.price, quote.as_of.isoformat())
    return found


def offers_from(
    config: AwsConfig, catalogue: Catalogue, *, mixed: bool = False, asked: Mapping[Place, Asked] | None = None
) -> tuple[Offer, ...]:
    """One offer per zone and market, which are pools apart unless they are mixed; `asked` prices go before listed ones.

    A spot node never costs more than its on-demand price: that is its cap. If subnets of a region are named, zones
    without one are left out: their default network is another one, if there is any, and the security groups are not in
    it.
    """
    offers: list[Offer] = []
    for region in config.regions:
        named = config.subnets.keys() & {offer.zone for offer in catalogue.select(cloud="aws", region=region)}
        for kind in config.instance_types:
            listed = catalogue.select(cloud="aws", region=region, instance_type=kind)
            told = (asked or {}).get((region, kind))
            if told is not None:
                listed = [replace(o, price=told.price, cap=None) if o.market is Market.ON_DEMAND else o for o in listed]
            on_demand = {offer.zone: offer.price for offer in listed if offer.market is Market.ON_DEMAND}
            offers += [
                _ours(offer, on_demand.get(offer.zone), config, mixed=mixed)
                for offer in listed
                if offer.market in config.markets and (not named or offer.zone in named)
            ]
    if not offers:
        what = f"{', '.join(config.instance_types)} in {', '.join(config.regions)}"
        hint = "sublet offers --cloud aws shows what is listed"
        raise Infeasible(what, binding="offers in the price list", needed=1, available=0, hint=hint)
    return tuple(sorted(offers, key=lambda offer: offer.id))


def _ours(offer: Offer, on_demand: Price | None, config: AwsConfig, *, mixed: bool) -> Offer:
    spot, market = offer.market is Market.SPOT, "" if mixed else f":{offer.market}"
    return replace(
        offer,
        pool=f"{offer.gpu}x{offer.gpus_per_node}{market}:{offer.region}",  # one job spans zones, not regions
        cap=max(offer.price, on_demand) if spot and on_demand is not None else None if spot else offer.price,
        hazard_per_h=config.hazard_per_h if spot else 0.0,
        notice_s=NOTICE_S if spot else 0.0,
        boot_s=config.boot_s,
        wind_down_s=WIND_DOWN_S,
    )


def newest(rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]) -> dict[tuple[str, str], tuple[str, float]]:
    """(zone id, instance type) -> the last of DescribeSpotPriceHistory: the price as it was written, and since when."""
    last: dict[tuple[str, str], tuple[datetime, str]] = {}
    for row in rows:
        zone = str(row["AvailabilityZone"])
        key = (zone_ids.get(zone, zone), str(row["InstanceType"]))
        stamp = row["Timestamp"]
        if key not in last or stamp > last[key][0]:
            last[key] = (stamp, str(row["SpotPrice"]))
    return {key: (text, stamp.timestamp()) for key, (stamp, text) in last.items()}


def doubt(offer: Offer, text: str) -> str:
    """Why it can be no price; empty when it can. By the rules of market.hygiene."""
    try:
        usd_per_h = float(text)
    except ValueError:
        return f"{text!r} is not a number"
    if not math.isfinite(usd_per_h) or usd_per_h <= 0:
        return f"USD {text} per hour is not a price"
    low, high = PLAUSIBLE_USD_PER_GPU_H
    if not low <= usd_per_h / offer.gpus_per_node <= high:
        return f"USD {usd_per_h / offer.gpus_per_node:.4g} per GPU-hour is outside {low:g} to {high:g}"
    return ""
