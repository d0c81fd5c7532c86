"""Offers of AWS for chosen regions and types, their prices on demand, and which prices to believe.

The on-demand price of a node is from the list, or was asked for before this start: another price is
another list of offers, which the log is told. Today's price of a spot node comes as PriceChanged, once it is asked.

A price that has fallen is believed when it is heard on a second day: until then the higher one counts, so that no slip
lets a hard budget be overrun. Without an answer, the last one counts, or the list that ships with Sublet.

Filters and answer: "GetProducts" in the AWS Price List API reference. Every entry of the answer is a product as JSON.

A price that jumps: a slip for one tick, a price once it has held. `market.hygiene` sets a price aside that is five
times away from the one before. Some such moves are real, and nothing but time tells them from a slip: one that is asked
again and again for ten minutes is what a node costs now.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from sublet.domain.events import PriceChanged, PriceDoubted
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.errors import BadInput, Infeasible, NoAccess, SubletError
from sublet.machine.files import FILES, Files
from sublet.market.catalogue import Catalogue
from sublet.market.hygiene import AGREEMENT, FAR_OUT, PLAUSIBLE_USD_PER_GPU_H
from sublet.runtime.clock import Clock
from sublet.runtime.providers.aws.calls import Calls, Refusal, meaning
from sublet.runtime.providers.aws.config import AwsConfig

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


_HELD_S = 600.0  # ten readings of a price that is asked for every minute; nothing is rented on it meanwhile
LONGEST_S = 1800.0  # a pool that is always refused is tried twice an hour
STALE_S = (
    900.0  # that a price may be without being confirmed, before nothing is rented on it: fifteen readings in a row
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jump:
    """A price far from the one before that is watched, and since when it is asked."""

    usd_per_h: float
    since_s: float


def _after_reading(before_usd_per_h: float, usd_per_h: float, watched: _Jump | None, now_s: float) -> _Jump | None:
    """The jump that is watched after this reading; None = it is believed: no jump, or one that has held.

    A reading that does not agree with the watched one starts the time anew, so a price that jumps about is never
    believed.

    >>> jump = after_reading(0.3, 3.0, None, 0.0)
    >>> after_reading(0.3, 3.1, jump, 599.0) == jump, after_reading(0.3, 3.1, jump, 600.0)
    (True, None)
    """
    if before_usd_per_h / FAR_OUT < usd_per_h < before_usd_per_h * FAR_OUT:
        return None
    agrees = watched is not None and watched.usd_per_h / AGREEMENT < usd_per_h < watched.usd_per_h * AGREEMENT
    if watched is None or not agrees:
        return _Jump(usd_per_h=usd_per_h, since_s=now_s)
    return None if now_s - watched.since_s >= _HELD_S else watched


class Pools:
    """Which offers were refused lately, and until when they are left alone: twice as long each time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[str, tuple[int, float, str]] = {}  # offer -> how often in a row, until when, why

    def wait_s(self, offer_id: str) -> float:
        """How long it is to be left alone still."""
        return self._refusals.get(offer_id, (0, 0.0, ""))[1] - self._clock.now_s()

    def why(self, offer_id: str) -> str:
        """Why it is."""
        return self._refusals[offer_id][2]

    def note_refusal(self, offer_id: str, error: Refusal | NoAccess) -> float:
        """It was refused; how long to leave it alone."""
        times = self._refusals.get(offer_id, (0, 0.0, ""))[0]
        first_s = error.wait_s if isinstance(error, Refusal) else 60.0
        wait_s: float = min(first_s * 2**times, max(LONGEST_S, first_s))
        if wait_s > 0:
            self._refusals[offer_id] = (times + 1, self._clock.now_s() + wait_s, error.why)
        return wait_s

    def note_success(self, offer_id: str) -> None:
        """One was had, or given back."""
        self._refusals.pop(offer_id, None)


class SpotPrices:
    """`doubts` names the offers whose last price is not believed: nothing is rented on it, what runs goes on.

    Running nodes are charged a higher price from its first reading on: the bill would be, if it is true. A jump that
    has held for ten minutes is believed. A price without confirmation for a quarter of an hour is not.
    """

    def __init__(
        self, calls: Calls, clock: Clock, offers: Sequence[Offer], *, unix_s: Callable[[], float] | None = None
    ) -> None:
        self._calls, self._clock, self._unix_s = calls, clock, unix_s or clock.wall.unix
        self._spot = [offer for offer in offers if offer.market is Market.SPOT]
        self._price: dict[str, Price] = {offer.id: offer.price for offer in offers}
        self._zones: dict[str, dict[str, str]] = {}  # region -> name -> id
        self._jumps: dict[str, _Jump] = {}  # by offer
        self._charged: dict[str, Price] = {}  # offer -> a price that is not believed, and was told to be charged
        self._believed_s: dict[str, float] = {}  # offer -> when its price was last heard and believed
        self.doubts: dict[str, str] = {}
        self._asked_s: float | None = None  # when prices were first asked for

    def why_not(self, offer_id: str) -> str:
        """Why nothing should be rented at the price that is known of this offer; empty where it may be."""
        if offer_id in self.doubts or self._asked_s is None or all(offer.id != offer_id for offer in self._spot):
            return self.doubts.get(offer_id, "")
        age_s = self._clock.now_s() - self._believed_s.get(offer_id, self._asked_s)
        return "" if age_s <= STALE_S else f"it was not confirmed for {age_s / 60.0:.0f} min"

    def age_s(self) -> float | None:
        """Since the price of every spot offer was last confirmed; None without spot offers, or before that."""
        if not self._spot or any(offer.id not in self._believed_s for offer in self._spot):
            return None
        return self._clock.now_s() - min(self._believed_s.values())

    async def zone_name(self, region: str, zone_id: str) -> str:
        """This account's name of the zone; names differ between accounts, ids do not."""
        if not zone_id:
            return ""
        for name, known in (await self._zone_ids(region)).items():
            if known == zone_id:
                return name
        raise Refusal("zone", f"this account has no zone {zone_id}", 3600.0)

    async def changes(self) -> list[PriceChanged | PriceDoubted]:
        """The prices that are not what they were, each at the time from which EC2 charges it.

        All of them at the first reading: a listener may have an older one, of the controller before this one.
        """
        if self._asked_s is None:
            self._asked_s = self._clock.now_s()
        changes: list[PriceChanged | PriceDoubted] = []
        for region in sorted({offer.region for offer in self._spot}):
            kinds = sorted({offer.instance_type for offer in self._spot if offer.region == region})
            rows = await self._calls.pages(
                region,
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=kinds,
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.fromtimestamp(self._unix_s(), UTC),  # so that only the prices of now come
            )
            prices = newest(rows, await self._zone_ids(region))
            for offer in self._spot:
                found = prices.get((offer.zone, offer.instance_type))
                if offer.region == region and found is not None:
                    ago_s = max(0.0, self._unix_s() - found[1])
                    changes += self._heard(offer, found[0], max(0.0, self._clock.now_s() - ago_s))
        return changes

    def _heard(self, offer: Offer, text: str, since_s: float) -> list[PriceChanged | PriceDoubted]:
        """The news in a reading."""
        if why := doubt(offer, text):
            self._set_aside(offer, why)
            return []
        price = Price.from_usd_per_h(text)
        if why := self._reason_to_doubt(offer, float(text)):
            self._set_aside(offer, why)
            if price <= self._price[offer.id] or price == self._charged.get(offer.id):
                return []
            self._charged[offer.id] = price
            return [PriceDoubted(since_s, offer.id, price)]
        if self.doubts.pop(offer.id, None):
            _log.warning("the price of %s is believed again: USD %s per hour", offer.id, text)
        first = offer.id not in self._believed_s
        charged = self._charged.pop(offer.id, None)
        changed = first or charged is not None or price != self._price[offer.id]
        self._believed_s[offer.id], self._price[offer.id] = self._clock.now_s(), price
        return [PriceChanged(since_s, offer.id, price)] if changed else []

    def _set_aside(self, offer: Offer, why: str) -> None:
        if offer.id not in self.doubts:
            _log.warning("the price of %s is set aside: %s", offer.id, why)
        self.doubts[offer.id] = why

    def _reason_to_doubt(self, offer: Offer, usd_per_h: float) -> str:
        """Why it is not believed yet; empty when it is."""
        before = self._price[offer.id].usd_per_h
        jump = _after_reading(before, usd_per_h, self._jumps.pop(offer.id, None), self._clock.now_s())
        if jump is None:
            return ""
        self._jumps[offer.id] = jump
        held = f"believed if it holds for {_HELD_S / 60:.0f} minutes"
        return f"it jumped from USD {before:.4g} to {usd_per_h:.4g} per hour; {held}"

    async def _zone_ids(self, region: str) -> dict[str, str]:
        if region not in self._zones:
            answer = await self._calls.call(region, "describe_availability_zones")
            self._zones[region] = {zone["ZoneName"]: zone["ZoneId"] for zone in answer["AvailabilityZones"]}
        return self._zones[region]
