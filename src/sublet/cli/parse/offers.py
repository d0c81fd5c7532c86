"""From names of offers, kinds of GPU and markets to what can be rented, in today's catalogue or an older one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sublet.cli.options import DEFAULT_OFFER
from sublet.domain.offer import Market
from sublet.domain.shape import packed
from sublet.errors import Infeasible, InvalidValue, UnknownName

if TYPE_CHECKING:
    from sublet.domain.job import Job
    from sublet.domain.offer import Offer
    from sublet.market.catalogue import Catalogue, Quote

ANY_KIND = "any GPU"  # a name that no measured profile knows


def find_offers(texts: Sequence[str], as_gpu: str | None) -> tuple[list[Offer], tuple[str, ...]]:
    """The offers, and notes on what is odd about them."""
    from sublet.sim import scenario

    offers, notes = [], []
    for text in texts:
        offer, catalogue = _find_offer(text)
        if offer in offers:
            raise InvalidValue("--offer", list(texts), f"different offers; {offer.id} is there twice")
        offers.append(offer)
        if catalogue:
            notes.append(f"the price of {offer.id} is of {catalogue}: it is no longer sold")
    if as_gpu is not None:
        offers = [scenario.as_if(offer, as_gpu) for offer in offers]
        notes.append(f"nodes are treated as if they had {as_gpu}s")
    return offers, tuple(notes)


def find_quotes(texts: Sequence[str]) -> list[Quote]:
    """Offers by name, in today's catalogue, else in an older one."""
    from sublet.market.catalogue import CATALOGUES, load_catalogue

    current, *older = (load_catalogue(name) for name in CATALOGUES)
    quotes: list[Quote] = []
    for text in texts:
        try:
            catalogue = next(each for each in (current, *older) if _lists(each, text))
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
    from sublet.market.catalogue import load_catalogue, load_gpus

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


def _find_offer(text: str) -> tuple[Offer, str]:
    """In today's catalogue, else in an older one, which is named."""
    from sublet.market.catalogue import CATALOGUES, load_catalogue

    current, *older = CATALOGUES
    try:
        return load_catalogue(current).find(text), ""
    except UnknownName as error:
        for name in older:
            try:
                return load_catalogue(name).find(text), name
            except UnknownName:
                continue
        if "next:" in str(error):  # it knows why
            raise
        hint = "write CLOUD:TYPE[:REGION][:spot]; 'sublet offers --limit 0' lists them all"
        raise UnknownName("offer", text, error.known, hint=hint) from None


def _lists(catalogue: Catalogue, text: str) -> bool:
    try:
        catalogue.find(text)
    except UnknownName:
        return False
    return True


def _runs_on(job: Job, gpu: str) -> bool:
    """At its least worker count, or as it was asked for, on nodes of one to eight GPUs."""
    spreads = {packed(gpus, size) for gpus in (job.min_gpus, job.gpus) for size in (1, 4, 8)}
    return any(job.speed.rate(gpu, spread, 0.0) > 0 for spread in spreads)
