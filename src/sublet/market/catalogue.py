"""The price lists of the clouds: what can be rented, where, on which market, for how much; and the kinds of GPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TypedDict, Unpack

from sublet import data
from sublet.data.csvfile import Bounds, TextTable, read_columns
from sublet.domain.money import Price
from sublet.domain.offer import Gpu, Market, Offer
from sublet.errors import BadInput, InvalidValue, UnknownName
from sublet.market.hygiene import Listing, Quarantined, sorted_out

CATALOGUES = {
    "current": "prices/offers.csv.gz",
    "2023-02-15": "prices/offers_2023-02-15.csv.gz",  # for the V100 and K80 traces: AWS no longer sells p2 and p3
}
COLUMNS = (
    *("cloud", "region", "zone", "instance_type", "gpu", "gpu_count", "vcpus"),
    *("price_ondemand", "price_spot", "as_of"),
)
EVERYWHERE = "*"  # one price in every zone of the region, or in every region of the cloud


class Wanted(TypedDict, total=False):
    """The filters of `select`; one that is not named is not asked about."""

    gpu: str
    cloud: str
    region: str
    instance_type: str
    market: Market | str
    max_usd_per_h: float
    max_usd_per_gpu_h: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """An offer and the day on which the cloud stated its price."""

    offer: Offer
    as_of: date

    def age_days(self, today: date) -> int:
        """How old the price is; negative for a price of the future."""
        return (today - self.as_of).days


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Believed prices, cheapest per GPU first, and those set aside. Offers are made when they are asked for."""

    source: str
    listings: tuple[Listing, ...] = field(repr=False)
    quarantined: tuple[Quarantined, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.listings)

    def names(self, field: str) -> list[str]:
        """All values of `cloud`, `gpu`, `region` or `instance_type`, sorted."""
        return sorted({getattr(listing, field) for listing in self.listings})

    def select(self, **wanted: Unpack[Wanted]) -> list[Offer]:
        """The offers that fit, cheapest per GPU first: `select(gpu="H100", market="spot", max_usd_per_gpu_h=3)`."""
        return [_offer(listing) for listing in self._matches(wanted)]

    def quotes(self, **wanted: Unpack[Wanted]) -> list[Quote]:
        """`select` with the date of every price."""
        return [_quote(listing) for listing in self._matches(wanted)]

    def quote(self, offer_id: str) -> Quote:
        """The offer with exactly this id."""
        for listing in self.listings:
            if listing.id == offer_id:
                return _quote(listing)
        raise UnknownName("offer", offer_id, (listing.id for listing in self.listings), hint=self._doubts(offer_id))

    def find(self, text: str) -> Offer:
        """The cheapest offer that `cloud:instance_type[:region][:zone][:spot|on-demand]`, or an id, describes.

        Without a market it is on-demand where that is sold: a node that can be taken away must be asked for.
        """
        head, _, tail = text.rpartition(":")
        market = Market(tail) if tail in tuple(Market) else None
        what = head if market else text
        found = [listing for listing in self.listings if _is_spelled(what, listing)]
        if not found:
            raise UnknownName("offer", text, self._near(what), hint=self._doubts(what))
        fits = [listing for listing in found if listing.market is (market or Market.ON_DEMAND)]
        if market and not fits:
            raise UnknownName("offer", text, (listing.id for listing in found), hint=self._doubts(what))
        return _offer((fits or found)[0])

    def _matches(self, wanted: Wanted) -> Iterator[Listing]:
        for what in ("gpu", "cloud", "region", "instance_type"):
            name = wanted.get(what)
            known = self.names(what) + (self.names("label") if what == "instance_type" else [])
            if name is not None and name not in known:
                raise UnknownName(what.replace("_", " "), str(name), known)
        market = wanted.get("market")
        if market is not None and market not in tuple(Market):
            raise InvalidValue("market", market, " or ".join(Market))
        cap, cap_per_gpu = wanted.get("max_usd_per_h", math.inf), wanted.get("max_usd_per_gpu_h", math.inf)
        gpu, cloud, region, kind = (wanted.get(what) for what in ("gpu", "cloud", "region", "instance_type"))
        for listing in self.listings:
            if (
                (gpu is None or listing.gpu == gpu)
                and (cloud is None or listing.cloud == cloud)
                and (region is None or listing.region == region or (cloud and listing.region == EVERYWHERE))
                and (kind is None or kind in (listing.instance_type, listing.label))
                and (market is None or listing.market == market)
                and listing.usd_per_h <= cap
                and listing.usd_per_gpu_h <= cap_per_gpu
            ):
                yield listing

    def _near(self, what: str) -> Iterable[str]:
        """Names to suggest: regions of a type that exists, else types of a cloud that exists, else all types."""
        own = [listing for listing in self.listings if what.startswith(f"{listing.cloud}:{listing.instance_type}:")]
        if own:
            return {f"{listing.cloud}:{listing.instance_type}:{listing.region}" for listing in own}
        names = {f"{listing.cloud}:{listing.instance_type}" for listing in self.listings}
        of_cloud = {name for name in names if name.startswith(what.partition(":")[0] + ":")}
        return of_cloud or names

    def _doubts(self, what: str) -> str:
        for listing, reason in self.quarantined:
            if _is_spelled(what, listing) or what == listing.id:
                return f"line {listing.line} of {self.source} has it, but its price is quarantined: {reason}"
        return ""


def load_catalogue(name: str = "current") -> Catalogue:
    """A catalogue that ships with Sublet."""
    if name not in CATALOGUES:
        raise UnknownName("catalogue", name, CATALOGUES)
    path = data.locate(CATALOGUES[name])
    return _kept(path, path.stat().st_mtime_ns)


@lru_cache(len(CATALOGUES))
def _kept(path: Path, changed_ns: int) -> Catalogue:
    """Many ask for it, and thousands of prices are looked through each time."""
    del changed_ns  # another file, then
    return read_catalogue(path)


def read_catalogue(path: str | Path) -> Catalogue:
    """A price list in the format of docs/reference/markets.md."""
    believed, quarantined = sorted_out(_listings(read_columns(path, COLUMNS)))
    if not believed:
        raise BadInput(path, "no price in this file can be believed", hint=f"the first: {quarantined[0].reason}")
    believed.sort(key=lambda listing: (listing.usd_per_gpu_h, listing.id))
    return Catalogue(source=str(path), listings=tuple(believed), quarantined=tuple(quarantined))


def offer_id(cloud: str, region: str, zone: str, label: str, market: Market | str) -> str:
    """`aws:us-east-1:use1-az1:g4dn.12xlarge:spot`; what holds everywhere is left out."""
    places = ":".join([place for place in (cloud, region, zone) if place not in {"", EVERYWHERE}])
    return f"{places}:{label}:" + market


def _check(table: TextTable) -> None:
    """Refuse what is no name or no date."""
    for name in ("cloud", "instance_type", "gpu"):
        table.check_names(name)
    for name in ("region", "zone"):
        table.check_names(name, may_be_empty=True)
    as_of_R = table.columns["as_of"]
    for text in set(as_of_R):
        try:
            date.fromisoformat(text)
        except ValueError:
            raise table.wrong("as_of", as_of_R.index(text), "a date such as 2026-08-22") from None


def _listings(table: TextTable) -> Iterator[Listing]:
    """Two per row where both markets are stated, on-demand first."""
    _check(table)
    gpus_R: list[float] = table.floats("gpu_count", Bounds(least=0.001)).tolist()  # R rows
    vcpus_R: list[float] = table.floats("vcpus", Bounds(least=0), empty=0).tolist()
    column = table.columns
    kinds: dict[tuple[str, str], set[tuple[str, float]]] = defaultdict(set)
    for cloud, kind, gpu, gpus in zip(column["cloud"], column["instance_type"], column["gpu"], gpus_R, strict=True):
        kinds[cloud, kind].add((gpu, gpus))
    texts = (column[name] for name in ("cloud", "region", "zone", "instance_type", "gpu", "as_of"))
    markets = (column[name] for name in ("price_ondemand", "price_spot"))
    for line, gpus, vcpus, on_demand, spot, *where in zip(table.lines, gpus_R, vcpus_R, *markets, *texts, strict=True):
        cloud, region, zone, kind, gpu, as_of = where
        # GCP attaches different GPUs to one machine type, so there the type alone names no offer.
        label = kind if len(kinds[cloud, kind]) == 1 else f"{kind}+{gpus:g}x{gpu}"
        stem = offer_id(cloud, region, zone, label, "")
        for market, text in ((Market.ON_DEMAND, on_demand), (Market.SPOT, spot)):
            if text:  # made by position, which is quicker than by name
                usd_per_h = _usd_per_h(text)
                prices = (usd_per_h, usd_per_h / gpus, text, as_of)
                yield Listing(line, stem + market, cloud, region, zone, kind, label, gpu, gpus, vcpus, market, *prices)


def _usd_per_h(text: str) -> float:
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _offer(listing: Listing) -> Offer:
    return Offer(
        id=listing.id,
        gpu=listing.gpu,
        gpus_per_node=int(listing.gpus),
        market=listing.market,
        price=Price.from_usd_per_h(listing.text.strip()),
        cloud=listing.cloud,
        region="" if listing.region == EVERYWHERE else listing.region,
        zone="" if listing.zone == EVERYWHERE else listing.zone,
        instance_type=listing.instance_type,
    )


def _quote(listing: Listing) -> Quote:
    return Quote(offer=_offer(listing), as_of=date.fromisoformat(listing.as_of))


def _is_spelled(what: str, listing: Listing) -> bool:
    """Whether `what` may be written for an offer, without its market; the cloud may be left out."""
    if listing.instance_type not in what:  # quick, and true for nearly all
        return False
    region, zone = listing.region, listing.zone
    name = what.removeprefix(listing.cloud + ":")
    places = ("", f":{region}", f":{zone}", f":{region}:{zone}")
    return any(
        name in {*(kind + place for place in places), f"{region}:{kind}", f"{region}:{zone}:{kind}"}
        for kind in (listing.instance_type, listing.label)
    )


RATES = ("fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops")
LINKS = ("mem_bw_gbps", "nvlink_gbps", "pcie_gbps")  # the file writes gbps for gigabytes per second


def load_gpus() -> dict[str, Gpu]:
    """The GPUs that Sublet knows, by the name that every other file uses."""
    return read_gpus(data.locate("gpus.csv"))


def read_gpus(path: str | Path) -> dict[str, Gpu]:
    """A file with the columns of `gpus.csv`; an empty rate is one that is not recorded."""
    table = read_columns(path, ("gpu", "vendor", "mem_gib", *RATES, *LINKS))
    table.check_names("gpu")
    mem_gib_R = table.floats("mem_gib", Bounds(least=0)).tolist()  # R rows
    known = {name: _read_optional(table, name) for name in (*RATES, *LINKS)}
    gpus: dict[str, Gpu] = {}
    for row, name in enumerate(table.columns["gpu"]):
        if name in gpus:
            raise table.refusal(row, f"GPU {name} stands twice")
        fp32, tf32, fp16, bf16 = (known[rate][row] for rate in RATES)
        bandwidth, nvlink, pcie = (known[link][row] for link in LINKS)
        gpus[name] = Gpu(
            name=name,
            vendor=table.columns["vendor"][row],
            mem_gib=mem_gib_R[row],
            fp32_tflops=fp32,
            tf32_tflops=tf32,
            fp16_tflops=fp16,
            bf16_tflops=bf16,
            mem_bw_gb_per_s=bandwidth,
            nvlink_gb_per_s=nvlink or 0.0,
            pcie_gb_per_s=pcie or 0.0,
        )
    return gpus


def _read_optional(table: TextTable, name: str) -> list[float | None]:
    """A column; None where the field is empty."""
    values = table.floats(name, Bounds(least=0), empty=math.nan).tolist()
    return [None if math.isnan(value) else value for value in values]
