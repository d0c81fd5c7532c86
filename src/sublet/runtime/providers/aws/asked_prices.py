"""AWS's prices of instances on demand, by its own Price List service, and kept with the day in `aws/prices.json`.

A price that has fallen is believed when it is heard on a second day: until then the higher one counts, so that no slip
lets a hard budget be overrun. Without an answer, the last one counts, or the list that ships with Sublet.

Filters and answer: "GetProducts" in the AWS Price List API reference. Every entry of the answer is a product as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

from sublet.domain.money import Price
from sublet.errors import BadInput, NoAccess, SubletError
from sublet.machine.files import FILES, Files
from sublet.runtime.providers.aws.calls import meaning

__all__ = ["PRICING_REGION", "Asked", "Place", "ask_prices", "price_of"]

PRICING_REGION = "us-east-1"  # the service answers for all regions from a few of them
WANTED = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
ON_DEMAND = ("", "OnDemand")  # marketoption; older entries have none
MOST_PAGES = 5
MICRO = Decimal("0.000001")  # what a price is counted in here

Place = tuple[str, str]  # region, instance type


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
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
) -> tuple[dict[Place, Asked], list[str]]:
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
        known[region, kind] = Asked(usd_per_h=usd_per_h, day=today, before=before)
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
        client = make("pricing", PRICING_REGION)
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


def _why_not(error: SubletError, due: Mapping[Place, Asked | None], listed: Mapping[Place, tuple[Price, str]]) -> str:
    why = error.why if isinstance(error, NoAccess) else str(error).partition("\n")[0]
    right = "; the right pricing:GetProducts would let it" if isinstance(error, NoAccess) else ""
    days = sorted({listed[place][1] if asked is None else asked.day for place, asked in due.items()})
    return f"prices on demand cannot be asked for ({why}){right}: those of {days[0]} count, which may be too low"


def _text(price: Price) -> str:
    return f"{(Decimal(price.micro_usd_per_h) * MICRO).normalize():f}"


def _read(folder: Path, files: Files) -> dict[Place, Asked]:
    """A file that cannot be read is as none: it is asked for again."""
    try:
        rows: Iterable[dict[str, str]] = json.loads(files.read(folder / "prices.json"))
        found = {(row.pop("region"), row.pop("kind")): Asked(**row) for row in rows}
        return {place: asked for place, asked in found.items() if asked.price.micro_usd_per_h > 0}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write(folder: Path, known: Mapping[Place, Asked], files: Files) -> None:
    rows = [{"region": region, "kind": kind, **asdict(asked)} for (region, kind), asked in sorted(known.items())]
    files.make_folder(folder)
    files.write(folder / "prices.json", json.dumps(rows, indent=1).encode())
