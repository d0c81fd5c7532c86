"""Which prices to believe: the rules that keep a slip in a price list from renting a fleet.

Only the price of one market of one row is set aside, never the rest of the row, and always with its reason.

How far out is too far? Five times away from the usual price of that GPU kind on that market, unless something explains
it. The usual price is the median with one vote per cloud: AWS has more than half of all rows, and a cloud whose whole
file is wrong must not move the middle. Below three clouds the rows vote. Four things explain a price far from it:

- the host: the rent includes CPUs, so a T4 in a machine with 64 vCPUs costs six times a bare one and is no slip;
- the cloud: where its own median is within five times of the usual price, its rows are measured against that;
- the same row: a spot price between 8 % and 100 % of its own, believed, on-demand price is a discount that clouds
  advertise;
- another cloud: when two sellers ask nearly the same, it is a price and not a slip (old V100s at USD 0.14).

A wrong number of GPUs is not seen by its price, so counts are held to what can be built. Beyond eight, GPUs that sit on
boards come in eights, and a type whose name gives the number has as many.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from sublet.domain.offer import Market

FAR_OUT = 5.0  # times above or below the usual price
AGREEMENT = 2.0  # two clouds within this factor confirm one another
VOTING_CLOUDS = 3  # with fewer, one wrong cloud would be half of the votes
HOST_USD_PER_VCPU_H = 0.05  # a vCPU with its memory on demand: m5, n2 and Dv5 machines cost 0.048 to 0.05
DEEPEST_DISCOUNT = 0.08  # AWS, Azure and GCP advertise spot at up to 90 or 91 % off
ROUNDING_USD_PER_H = 0.0001  # AWS states spot prices with four decimals, on-demand with five
PLAUSIBLE_USD_PER_GPU_H = (0.02, 100.0)  # a GeForce 3060 costs 0.05, a B300 26
STALE_DAYS = {  # against the newest price of the list: list prices change once in years, spot prices every week
    Market.ON_DEMAND: 400,
    Market.SPOT: 120,
}
NO_HISTORY: Mapping[str, float] = MappingProxyType({})
ON_BOARDS = frozenset({"V100", "V100-32GB", "A100", "A100-80GB", "H100", "H200", "B200", "B300", "MI300X"})
BOARD = 8  # GPUs in SXM or OAM sockets: a host has one board of at most eight, or several full ones
COUNT_IN_NAME = re.compile(r"(?:^|_)(\d+)x[-_A-Z]")  # 3x_H100_SECURE, crusoecloud__10xL40S_48GB: these clouds name it
FRACTIONS_LISTED_AS_WHOLE = {  # Azure documents what part of an A10 these get; price lists say 1
    "Standard_NV6ads_A10_v5": "1/6",
    "Standard_NV12ads_A10_v5": "1/3",
    "Standard_NV18ads_A10_v5": "1/2",
}


class Listing(NamedTuple):
    """One row of a price list for one market, as it was written. `usd_per_h` is NaN where it is no number."""

    line: int
    id: str
    cloud: str
    region: str
    zone: str
    instance_type: str
    label: str  # the instance type, with the GPUs where the type alone does not tell them
    gpu: str
    gpus: float
    vcpus: float
    market: Market
    usd_per_h: float
    usd_per_gpu_h: float  # what everything is compared by
    text: str
    as_of: str


class Quarantined(NamedTuple):
    """A price that is not believed, and why."""

    listing: Listing
    reason: str


def sorted_out(listings: Iterable[Listing]) -> tuple[list[Listing], list[Quarantined]]:
    """The prices to believe, and the others with a reason each. O(n log n); `listings` hold on-demand before spot."""
    sound: list[Listing] = []
    out: list[Quarantined] = []
    seen: dict[str, int] = {}  # id -> line
    previous: Listing | None = None
    for listing in listings:
        same_row = previous is not None and previous.line == listing.line
        reason = _fault(listing, previous if same_row else None)
        if seen.setdefault(listing.id, listing.line) != listing.line:
            reason = f"the same offer as line {seen[listing.id]}"
        if reason:
            out.append(Quarantined(listing, reason))
        else:
            sound.append(listing)
        previous = listing
    believed = _far_out(sound, out)
    out.sort(key=lambda entry: (entry.listing.line, entry.listing.market))
    return believed, out


def outlived(
    listings: Sequence[Listing], before_usd_per_h: Mapping[str, float] = NO_HISTORY
) -> tuple[list[Listing], list[Quarantined]]:
    """The believed prices that still hold: not older than the newest by much, and not a sudden jump.

    `before_usd_per_h` is what offers cost before, by id; five times away from that is a slip, in either direction.
    """
    newest = max((date.fromisoformat(day) for day in {listing.as_of for listing in listings}), default=date.min)
    age_days = {day: (newest - date.fromisoformat(day)).days for day in {listing.as_of for listing in listings}}
    holds: list[Listing] = []
    out: list[Quarantined] = []
    for listing in listings:
        days, before = age_days[listing.as_of], before_usd_per_h.get(listing.id, listing.usd_per_h)
        if days > STALE_DAYS[listing.market]:
            out.append(Quarantined(listing, f"stale: {days} days older than the newest price of the list"))
        elif not before / FAR_OUT < listing.usd_per_h < before * FAR_OUT:
            jump = f"from USD {before:.4g} to {listing.usd_per_h:.4g} per hour"
            out.append(Quarantined(listing, f"jumped {jump} since the price before"))
        else:
            holds.append(listing)
    return holds, out


def _fault(listing: Listing, on_demand: Listing | None) -> str:
    """The fault of a price by itself or against its own row; empty when there is none."""
    usd_per_h = listing.usd_per_h
    if not math.isfinite(usd_per_h):
        return "not a number"
    if usd_per_h == 0:
        return "zero"
    if usd_per_h < 0:
        return "negative"
    if listing.gpus != int(listing.gpus):
        return f"fraction of a GPU ({listing.gpus:g})"
    if listing.instance_type in FRACTIONS_LISTED_AS_WHOLE:
        return f"fraction of a GPU ({FRACTIONS_LISTED_AS_WHOLE[listing.instance_type]}, listed as {listing.gpus:g})"
    if wrong := _why_miscounted(listing):
        return wrong
    low, high = PLAUSIBLE_USD_PER_GPU_H
    if not low <= listing.usd_per_gpu_h <= high:
        return f"USD {listing.usd_per_gpu_h:.4g} per GPU-hour is outside {low:g} to {high:g}"
    if on_demand is not None and 0 < on_demand.usd_per_h < usd_per_h - ROUNDING_USD_PER_H:
        return f"spot {usd_per_h:g} above on-demand {on_demand.usd_per_h:g}"
    return ""


def _why_miscounted(listing: Listing) -> str:
    """Why the node cannot have as many GPUs as are listed; empty when it can.

    The price per GPU, by which all is compared, is wrong by as much as the count is, and by too little to stand out.
    """
    gpus, named = int(listing.gpus), COUNT_IN_NAME.search(listing.instance_type)
    if named is not None and int(named[1]) != gpus:
        return f"{gpus} GPUs listed, but its name says {named[1]}"
    if listing.gpu in ON_BOARDS and gpus > BOARD and gpus % BOARD:
        return f"{gpus} x {listing.gpu} in one node: they come on boards of {BOARD}"
    return ""


def _far_out(sound: Sequence[Listing], out: list[Quarantined]) -> list[Listing]:
    """Move what is far out from `sound` to `out`; the rest comes back."""
    groups: dict[tuple[str, Market], list[Listing]] = defaultdict(list)
    for listing in sound:
        groups[listing.gpu, listing.market].append(listing)
    believed: list[Listing] = []
    on_demand_usd_per_h: dict[int, float] = {}  # believed ones by line, to explain spot prices
    for (gpu, market), group in sorted(groups.items()):  # "on-demand" sorts before "spot"
        usual, by_cloud = _usual_usd_per_gpu_h(group)
        for listing in group:
            level = by_cloud[listing.cloud]
            if (
                _near(listing, usual)
                or (usual / FAR_OUT <= level <= usual * FAR_OUT and _near(listing, level))
                or DEEPEST_DISCOUNT * on_demand_usd_per_h.get(listing.line, math.inf) <= listing.usd_per_h
                or _another_cloud_agrees(listing, group)
            ):
                believed.append(listing)
                if market is Market.ON_DEMAND:
                    on_demand_usd_per_h[listing.line] = listing.usd_per_h
            else:
                factor = listing.usd_per_gpu_h / usual
                times = f"{factor:.3g} times above" if factor > 1 else f"{1 / factor:.3g} times below"
                out.append(Quarantined(listing, f"{times} the usual USD {usual:.3g} per {gpu}-hour ({market})"))
    return believed


def _usual_usd_per_gpu_h(group: Sequence[Listing]) -> tuple[float, dict[str, float]]:
    """The middle of all, and the middle of each cloud."""
    prices: dict[str, list[float]] = defaultdict(list)
    for listing in group:
        prices[listing.cloud].append(listing.usd_per_gpu_h)
    by_cloud = {cloud: median(asked) for cloud, asked in prices.items()}
    votes = by_cloud.values() if len(by_cloud) >= VOTING_CLOUDS else [listing.usd_per_gpu_h for listing in group]
    return median(votes), by_cloud


def _near(listing: Listing, usual: float) -> bool:
    bare = listing.usd_per_gpu_h - HOST_USD_PER_VCPU_H * listing.vcpus / listing.gpus
    return usual / FAR_OUT <= listing.usd_per_gpu_h and bare <= usual * FAR_OUT


def _another_cloud_agrees(listing: Listing, group: Sequence[Listing]) -> bool:
    low, high = listing.usd_per_gpu_h / AGREEMENT, listing.usd_per_gpu_h * AGREEMENT
    return any(low <= other.usd_per_gpu_h <= high for other in group if other.cloud != listing.cloud)
