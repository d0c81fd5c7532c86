"""From the options of `sublet advise` to a profile of the job, and to the offers that may be recommended for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sublet.cli.parse.values import measured_profiles, parse_kind, parse_names
from sublet.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from sublet.advise.profiles import Profile
    from sublet.domain.offer import Offer
    from sublet.market.hygiene import Quarantined


def profile_from(model: str, own: str | None, batch: int | None, as_gpu: str = "") -> Profile:
    """Profile of a measured model, of a measured script (if on CPUs, as if on `as_gpu`), or from a user's file."""
    from sublet.advise.profiles import known_models, known_profile, profile_from_csv, profile_from_stored
    from sublet.domain.quantity import whole

    if batch is not None:
        whole("--batch", batch, 1)
    if as_gpu and (own is None or _is_table(Path(own))):
        raise InvalidValue("--as-gpu", as_gpu, "left out without a --profile that 'sublet profile' measured on CPUs")
    if own is not None and _is_table(Path(own)):
        return profile_from_csv(own, name=model, **({} if batch is None else {"batch": batch}))
    if own is not None:
        return profile_from_stored(measured_profiles(own), batch, parse_kind(as_gpu))
    if not model:
        raise InvalidValue("--model", model, f"one of {', '.join(known_models())}; or give --profile")
    return known_profile(model, batch)


def _is_table(path: Path) -> bool:
    """A file of figures, or one that is not there; what `sublet profile` wrote begins with a #."""
    if not path.is_file():
        return path.suffix == ".csv" or path.name.endswith(".csv.gz")
    with path.open("rb") as file:
        return file.read(1) != b"#"


def recommendable_offers(clouds: str | None, kinds: str | None) -> tuple[list[Offer], list[Quarantined], str]:
    """Offers that may be recommended, those that may not, and the day of the newest price."""
    from sublet.market.catalogue import load_catalogue
    from sublet.market.hygiene import outlived

    catalogue = load_catalogue()
    believed, stale = outlived(catalogue.listings)
    ids = {listing.id for listing in believed}
    wanted = {
        field: set(parse_names(option, text))
        for option, field, text in (("--clouds", "cloud", clouds), ("--kinds", "gpu", kinds))
        if text is not None
    }
    for field, names in wanted.items():
        for name in names - set(catalogue.names(field)):
            raise UnknownName("cloud" if field == "cloud" else "GPU kind", name, catalogue.names(field))
    offers = [
        offer
        for offer in catalogue.select()
        if offer.id in ids and all(getattr(offer, field) in names for field, names in wanted.items())
    ]
    if not offers:
        raise InvalidValue("--clouds, --kinds", (clouds, kinds), "such that something is offered: see sublet offers")
    newest = max(listing.as_of for listing in believed)
    return offers, [*catalogue.quarantined, *stale], newest
