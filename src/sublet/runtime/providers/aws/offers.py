"""Offers of AWS for chosen regions and types, their prices on demand, and which prices to believe.

The on-demand price of a node is from the list, or was asked for before this start: another price is
another list of offers, which the log is told. Today's price of a spot node comes as PriceChanged, once it is asked.

A price that has fallen is believed when it is heard on a second day: until then the higher one counts, so that no slip
lets a hard budget be overrun. Without an answer, the last one counts, or the list that ships with Sublet.

Filters and answer: "GetProducts" in the AWS Price List API reference. Every entry of the answer is a product as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import BadInput, Infeasible, NoAccess, SubletError
from sublet.machine.files import FILES, Files
from sublet.market.catalogue import Catalogue
from sublet.market.hygiene import PLAUSIBLE_USD_PER_GPU_H
from sublet.runtime.providers.aws.calls import meaning
from sublet.runtime.providers.aws.config import AwsConfig

__all__ = ["NOTICE_S", "Place", "ask_prices", "doubt", "listed_prices", "newest", "offers_from", "price_of"]

_PRICING_REGION = "us-east-1"  # the service answers for all regions from a few of them
WANTED = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
ON_DEMAND = ("", "OnDemand")  # marketoption; older entries have none
MOST_PAGES = 5
MICRO = Decimal("0.000001")  # what a price is counted in here
Place = tuple[str, str]  # region, instance type
NOTICE_S = 120.0  # what AWS documents for spot interruptions; best effort
WIND_DOWN_S = 60.0  # to save, to leave, and until EC2 says "shutting-down"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Prices of one type in one region: what was heard last, and what counted before."""

    usd_per_h: str
    day: str  # of the answer
    before: str  # what was heard on an earlier day; at first the list's

    @property
    def price(self) -> Price:
        """The price for sums: the higher of the two."""
        return max(Price.from_usd_per_h(self.usd_per_h), Price.from_usd_per_h(self.before))


def ask_prices(
    make: Callable[[str, str], Any],
    folder: Path,
    listed: Mapping[Place, tuple[Price, str]],
    today: str,
    *,
    files: Files = FILES,
) -> tuple[dict[Place, _Asked], list[str]]:
    """The prices of these places, asked for once a day, and sentences about those that could not be asked.

    `listed` is what the list that ships says of each, and of which day it is.
    """
    known, notes = _read(folder, files), []
    due = [place for place in listed if place not in known or known[place].day != today]
    for region, kind in due:
        try:
            usd_per_h = price_of(make, region, kind)
        except SubletError as error:
            notes.append(_why_not(error, {place: known.get(place) for place in due}, listed))
            break  # a service that does not answer for one does not for the next
        price, day = listed[region, kind]
        before = known[region, kind].usd_per_h if (region, kind) in known else _text(price)
        known[region, kind] = _Asked(usd_per_h=usd_per_h, day=today, before=before)
        if known[region, kind].price > price:
            notes.append(f"{kind} in {region} costs USD {usd_per_h}/h on demand; the list of {day} has {_text(price)}")
    if due:
        _write(folder, known, files)
    return {place: known[place] for place in listed if place in known}, notes


def price_of(make: Callable[[str, str], Any], region: str, kind: str) -> str:
    """USD per hour, as AWS writes it; the highest where it names several; a SubletError where it names none."""
    wanted = {**WANTED, "instanceType": kind, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    request: dict[str, Any] = {"ServiceCode": "AmazonEC2", "Filters": filters}
    found: list[str] = []
    try:
        client = make("pricing", _PRICING_REGION)
        for _ in range(MOST_PAGES):
            answer = client.get_products(**request)
            found += [text for entry in answer["PriceList"] for text in _hourly(json.loads(entry), wanted)]
            if not answer.get("NextToken"):
                break
            request["NextToken"] = answer["NextToken"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput("pricing:GetProducts", f"its answer cannot be read ({error!r})") from error
    except Exception as error:
        raise meaning("pricing:GetProducts", error) from error
    if not found:
        raise BadInput("pricing:GetProducts", f"it names no price of {kind} in {region}")
    return max(found, key=float)


def _hourly(product: Mapping[str, Any], wanted: Mapping[str, str]) -> Iterator[str]:
    """Prices by the hour of one product, if it is the one that was asked for."""
    attributes = product["product"]["attributes"]
    if any(attributes.get(name) != value for name, value in wanted.items()):
        return
    if attributes.get("marketoption", "") not in ON_DEMAND:
        return
    for term in product["terms"].get("OnDemand", {}).values():
        for rate in term["priceDimensions"].values():
            text = rate["pricePerUnit"].get("USD", "")
            if rate["unit"] == "Hrs" and text and 0.0 < float(text) < float("inf"):
                yield f"{Decimal(text).quantize(MICRO, ROUND_CEILING).normalize():f}"


def _why_not(error: SubletError, due: Mapping[Place, _Asked | None], listed: Mapping[Place, tuple[Price, str]]) -> str:
    why = error.why if isinstance(error, NoAccess) else str(error).partition("\n")[0]
    right = "; the right pricing:GetProducts would let it" if isinstance(error, NoAccess) else ""
    days = sorted({listed[place][1] if asked is None else asked.day for place, asked in due.items()})
    return f"prices on demand cannot be asked for ({why}){right}: those of {days[0]} count, which may be too low"


def _text(price: Price) -> str:
    return f"{(Decimal(price.micro_usd_per_h) * MICRO).normalize():f}"


def _read(folder: Path, files: Files) -> dict[Place, _Asked]:
    """A file that cannot be read is as none: it is asked for again."""
    try:
        rows: Iterable[dict[str, str]] = json.loads(files.read(folder / "prices.json"))
        found = {(row.pop("region"), row.pop("kind")): _Asked(**row) for row in rows}
        return {place: asked for place, asked in found.items() if asked.price.micro_usd_per_h > 0}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write(folder: Path, known: Mapping[Place, _Asked], files: Files) -> None:
    rows = [{"region": region, "kind": kind, **asdict(asked)} for (region, kind), asked in sorted(known.items())]
    files.make_folder(folder)
    files.write(folder / "prices.json", json.dumps(rows, indent=1).encode())


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
    config: AwsConfig, catalogue: Catalogue, *, mixed: bool = False, asked: Mapping[Place, _Asked] | None = None
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
