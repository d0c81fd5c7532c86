"""`sublet offers`: what can be rented, cheapest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli.options import Json, Output, OutputOption, wants_document
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.market.catalogue import Catalogue, Quote, Wanted

__all__ = ["offers"]


# Where the bundled prices come from; the clouds' own list prices carry no licence of their own.
SOURCE = "skypilot-org/skypilot-catalog f2624ac0"
LICENCE = "none stated; list prices published by the clouds"


def offers(  # noqa: PLR0913 - one filter each
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option(metavar="GPU", help="Kind of GPU, for example H100.")] = None,
    max_price: Annotated[float | None, typer.Option(metavar="USD", help="Most USD per GPU and hour.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Only spot.")] = False,
    on_demand: Annotated[bool, typer.Option("--on-demand", help="Only on-demand.")] = False,
    cloud: Annotated[str | None, typer.Option(metavar="CLOUD", help="For example aws.")] = None,
    region: Annotated[str | None, typer.Option(metavar="REGION", help="For example us-east-1.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Show so many; 0 = all.")] = 20,
    catalogue: Annotated[str, typer.Option(metavar="NAME", help="current or 2023-02-15.")] = "current",
    output: OutputOption = Output.TABLE,
    json: Json = False,
) -> None:
    """Offers to rent, the cheapest GPU first, with the age of every price."""
    from sublet.domain.quantity import at_least, whole
    from sublet.market.catalogue import load_catalogue

    whole("--limit", limit)
    if spot and on_demand:
        raise InvalidValue("--spot", spot, "left out with --on-demand; leave out both to see both")
    wanted: Wanted = {}
    if gpu is not None:
        wanted["gpu"] = gpu
    if cloud is not None:
        wanted["cloud"] = cloud
    if region is not None:
        wanted["region"] = region
    if max_price is not None:
        at_least("--max-price", max_price, 0.0)
        wanted["max_usd_per_gpu_h"] = max_price
    if spot or on_demand:
        wanted["market"] = "spot" if spot else "on-demand"
    listed_in, today = load_catalogue(catalogue), date.today()  # noqa: DTZ011 - prices are dated by day
    found = listed_in.quotes(**wanted)
    if wants_document(output, json):
        facts = {"source": SOURCE, "licence": LICENCE, "total": len(found)}
        listed = [_json_from_quote(quote, today) for quote in found[: limit or None]]
        print_document({"schema_version": 1, "command": command_line(context), **facts, "offers": listed})
        return
    if not found:
        print_notes([_nothing(listed_in, wanted)])
        return
    rows = _rows_from_quotes(found, today)
    titles = ["offer", "zones", "GPU", "GPUs", "USD/h", "USD/GPU-h", "as of", "age"]
    print_table(titles, rows[: limit or None], words=(0, 2))
    more = " (--limit 0 shows all)" if 0 < limit < len(rows) else ""
    shown = f"{len(rows[: limit or None])} of {len(rows):,} offers that fit{more}"
    print_notes([shown, f"source: {SOURCE}; licence: {LICENCE}"])


def _nothing(catalogue: Catalogue, wanted: Wanted) -> str:
    """Why nothing fits, and what would."""
    dearer: Wanted = {**wanted, "max_usd_per_gpu_h": float("inf")}
    if rest := catalogue.quotes(**dearer):
        offer = rest[0].offer
        return (
            f"nothing fits: the cheapest is USD {offer.usd_per_gpu_h:,.3f} per GPU-hour, {offer.id}; raise --max-price"
        )
    kept_out = sum(
        all(
            getattr(each.listing, field) == value
            for field, value in wanted.items()
            if field in ("gpu", "cloud", "market")
        )
        for each in catalogue.quarantined
    )
    aside = f"; {kept_out} such prices are quarantined as not to be believed" if kept_out else ""
    return f"nothing fits: no such offer at any price{aside}; leave out a filter"


def _rows_from_quotes(quotes: Sequence[Quote], today: date) -> list[list[str]]:
    """One row for all zones of a region that ask the same price; the name in front is what --offer takes."""
    zones: dict[tuple[str, ...], int] = {}
    for quote in quotes:
        offer = quote.offer
        name = offer.id.replace(f":{offer.zone}:", ":") if offer.zone and offer.region else offer.id
        prices = (f"{offer.price.usd_per_h:,.3f}", f"{offer.usd_per_gpu_h:,.3f}")
        age = (quote.as_of.isoformat(), f"{quote.age_days(today)} d")
        row = (name, offer.gpu, f"{offer.gpus_per_node}", *prices, *age)
        zones[row] = zones.get(row, 0) + bool(offer.zone)
    return [[name, f"{count}" if count else "all", *rest] for (name, *rest), count in zones.items()]


def _json_from_quote(quote: Quote, today: date) -> dict[str, object]:
    offer = quote.offer
    return {
        "id": offer.id,
        "cloud": offer.cloud,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "gpu": offer.gpu,
        "gpus_per_node": offer.gpus_per_node,
        "market": str(offer.market),
        "usd_per_h": offer.price.usd_per_h,
        "usd_per_gpu_h": offer.usd_per_gpu_h,
        "as_of": quote.as_of.isoformat(),
        "age_days": quote.age_days(today),
    }
