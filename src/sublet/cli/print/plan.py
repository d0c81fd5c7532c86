"""From what was typed for `sublet plan` to offers and quotas, and what a reader of the plan should know of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sublet.cli.options import DEFAULT_OFFER
from sublet.domain.offer import Market
from sublet.domain.shape import packed
from sublet.errors import Infeasible, InvalidValue, UnknownName

if TYPE_CHECKING:
    from datetime import date

    from sublet.domain.job import Job
    from sublet.market.catalogue import Catalogue, Quote
    from sublet.rental.plan import RentalPlan

__all__ = [
    "cheapest_quotes",
    "named_quotes",
    "names_from_text",
    "notes_on_offers",
    "notes_on_plan",
    "quotas_from_texts",
]

ANY_KIND = "any GPU"  # a name that no measured profile knows


def names_from_text(field: str, text: str) -> list[str]:
    """`T4,A100`: names between commas, each once."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InvalidValue(field, text, "different names with commas between them, such as T4,A100")
    return names


def quotas_from_texts(texts: Sequence[str]) -> dict[str, float]:
    """`A100=64` each."""
    quotas: dict[str, float] = {}
    for text in texts:
        kind, _, number = text.partition("=")
        try:
            most = float(number)
        except ValueError:
            most = math.nan
        if not kind or not 0 <= most < math.inf or kind in quotas:
            raise InvalidValue("--quota", text, "a kind of GPU and how many, once for each kind, such as A100=64")
        quotas[kind] = most
    return quotas


def named_quotes(texts: Sequence[str]) -> list[Quote]:
    """Offers by name, in today's catalogue, else in an older one."""
    from sublet.market.catalogue import CATALOGUES, load_catalogue

    current, *older = (load_catalogue(name) for name in CATALOGUES)
    quotes: list[Quote] = []
    for text in texts:
        try:
            catalogue = next(each for each in (current, *older) if _has(each, text))
        except StopIteration:
            catalogue = current
        quote = catalogue.quote(catalogue.find(text).id)
        if quote in quotes:
            raise InvalidValue("--offer", list(texts), f"different offers; {quote.offer.id} is there twice")
        quotes.append(quote)
    return quotes


def cheapest_quotes(
    jobs: Sequence[Job], kinds: Sequence[str] | None, markets: Sequence[str]
) -> tuple[list[Quote], list[str]]:
    """For every kind, market and node size the cheapest in the catalogue, and notes on the choice of kinds."""
    from sublet.market.catalogue import load_catalogue
    from sublet.market.gpus import load_gpus

    catalogue, known = load_catalogue(), {*Market}
    for market in markets:
        if market not in known:
            raise UnknownName("market", market, known)
    sold = catalogue.names("gpu")
    for kind in kinds or ():
        if kind not in {*sold, *load_gpus()}:
            raise UnknownName("GPU kind", kind, {*sold, *load_gpus()})
    notes, unlike = [], list({(id(job.speed), job.min_gpus): job for job in jobs}.values())
    if kinds is None:
        if all(_runs_on(job, ANY_KIND) for job in unlike):
            kinds = [catalogue.find(DEFAULT_OFFER).gpu]
            notes.append(
                f"the speed of these jobs does not depend on the kind of GPU: {kinds[0]} unless --kinds is given"
            )
        else:
            kinds = [kind for kind in sold if all(_runs_on(job, kind) for job in unlike)]
    elif all(_runs_on(job, ANY_KIND) for job in unlike) and len(kinds) > 1:
        notes.append("the speed of these jobs does not depend on the kind of GPU: only prices tell the kinds apart")
    quotes: dict[tuple[str, Market, int], Quote] = {}
    for kind in kinds:
        for quote in catalogue.quotes(gpu=kind) if kind in sold else ():
            if quote.offer.market in markets:
                quotes.setdefault((kind, quote.offer.market, quote.offer.gpus_per_node), quote)
    if not quotes:
        raise Infeasible(
            f"no {' or '.join(kinds) or 'kind of GPU with a speed for all jobs'} is offered ({' or '.join(markets)})",
            binding="number of offers",
            needed=1,
            available=0,
            hint="name others with --kinds, --markets or --offer; 'sublet offers' lists them",
        )
    return list(quotes.values()), notes


def notes_on_offers(plan: RentalPlan, quotes: Sequence[Quote], today: date) -> list[str]:
    """What the plan rents, with the age of its price."""
    by_id = {quote.offer.id: quote for quote in quotes}
    notes = []
    for offer in plan.offers:
        quote = by_id[offer.id]
        price = f"USD {offer.price.usd_per_h:,.3f} per hour, USD {offer.usd_per_gpu_h:,.3f} per GPU"
        age = f"price of {quote.as_of.isoformat()}, {quote.age_days(today)} days old"
        notes.append(f"rents {offer.id} ({offer.gpus_per_node} x {offer.gpu}) at {price}; {age}")
    if len(quotes) > len(plan.offers):
        notes.append(f"chosen from {len(quotes)} offers of {', '.join(sorted({q.offer.gpu for q in quotes}))}")
    return notes


def notes_on_plan(plan: RentalPlan, provision_s: float, quotas: Mapping[str, float]) -> list[str]:
    """What the figures rest on."""
    boot = f" and {provision_s:g} s to boot, both" if provision_s else " (booting is not included: --provision-s),"
    notes = [
        "means over the long run, if jobs keep arriving as they do here (number of jobs / span) and nobody ever waits",
        "a job pays for its share of a node; GPUs left over on nodes (fragmentation) are not included",
        f"every start takes the job's restart time{boot} paid for",
        "GPUs held 99% of the time: as for Poisson arrivals (M/G/infinity), exact then; bursts need more",
    ]
    if any(shape.nodes > 1 for of in plan.classes for shape, _ in of.chosen):
        notes.append(
            "speeds over several nodes are as profiled; small nodes may have a slower network than was measured"
        )
    if any(of.weight != 1.0 for of in plan.classes):
        notes.append("mean times are weighted by the weights of the jobs")
    if quotas:
        limits = ", ".join(f"{most:g} {kind}" for kind, most in quotas.items())
        notes.append(f"quota: {limits} on average, not at every moment")
    return notes


def _has(catalogue: Catalogue, text: str) -> bool:
    try:
        catalogue.find(text)
    except UnknownName:
        return False
    return True


def _runs_on(job: Job, gpu: str) -> bool:
    """At its least width, or as it was asked for, on nodes of one to eight GPUs."""
    spreads = {packed(gpus, size) for gpus in (job.min_gpus, job.gpus) for size in (1, 4, 8)}
    return any(job.speed.rate(gpu, spread, 0.0) > 0 for spread in spreads)
