"""`sublet advise`: which machines to rent for one job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.advice import caveats, json_from_advice, notes_on_advice, predicted, print_advice, replayed
from sublet.cli.print.tables import print_document, print_notes
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.advise.profiles import Profile
    from sublet.domain.offer import Offer
    from sublet.market.hygiene import Quarantined

__all__ = ["advise"]

SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
HOURS = {"m": 1 / 60, "min": 1 / 60, "h": 1.0, "d": 24.0}


def _complete_model(incomplete: str) -> list[str]:
    from sublet.advise.profiles import known_models

    return [name for name in known_models() if name.startswith(incomplete)]


def advise(  # noqa: PLR0913 - one argument per option
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(metavar="MODEL", help="A model with a profile, such as bert.", autocompletion=_complete_model),
    ] = "",
    samples: Annotated[str, typer.Option(metavar="N", help="How many to train on: 50M, 2.5G or 300000.")] = "",
    profile: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Your own figures instead: columns gpu, gpus and samples_per_s."),
    ] = None,
    budget: Annotated[str | None, typer.Option(metavar="USD", help="The fastest for this much in all.")] = None,
    max_rate: Annotated[str | None, typer.Option(metavar="USD/H", help="The fastest for this much an hour.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="The cheapest in time: 12h, 90m, 2d.")] = None,
    clouds: Annotated[str | None, typer.Option(metavar="CLOUD,CLOUD", help="Only these. [default: all]")] = None,
    kinds: Annotated[str | None, typer.Option(metavar="GPU,GPU", help="Only these kinds. [default: all]")] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Global batch. [default: 8 times that of the profile]")
    ] = None,
    state_gib: Annotated[
        float | None,
        typer.Option(metavar="GIB", help="Size of a checkpoint. [default: by the model; 1 with --profile]"),
    ] = None,
    most_nodes: Annotated[int, typer.Option(metavar="N", help="Rent at most so many nodes.")] = 64,
    top: Annotated[int, typer.Option(metavar="N", help="Show, and replay, so many points of the frontier.")] = 5,
    seed: opt.Seed = 0,
    explain: Annotated[bool, typer.Option("--explain", help="Say where each figure comes from.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Which machines to rent for one job: time, dollars and risk, and what would change the answer."""
    from dataclasses import replace

    from sublet.advise.adviser import Ask
    from sublet.advise.adviser import advise as weigh
    from sublet.advise.error import left_out
    from sublet.advise.frontier import Limits
    from sublet.domain.quantity import whole
    from sublet.market.gpus import load_gpus

    whole("--top", top, 1)
    whole("--seed", seed)
    limits = Limits(
        budget_usd=_positive("--budget", budget, ""),
        usd_per_h=_positive("--max-rate", max_rate, "/h"),
        deadline_h=_hours(deadline),
    )
    known = _profile(model, profile, batch)
    if state_gib is not None:
        known = replace(known, state_bytes=_above_0("--state-gib", state_gib) * 1024**3)
    ask = Ask(
        profile=known,
        samples=_count(samples),
        limits=limits,
        goal="fastest" if limits.stated() and deadline is None else "cheapest",
        most_nodes=most_nodes,
    )
    offers, quarantined, newest = _offers(clouds, kinds)
    advice = weigh(ask, offers, load_gpus())
    shown = replayed(ask, advice, top, seed)
    errors = left_out(known, load_gpus()) if predicted(shown) else []
    notes = notes_on_advice(ask, advice, quarantined, newest)
    if opt.wants_document(output, json):
        told = json_from_advice(context, ask, advice, shown, errors)
        all_notes = [*caveats(ask, shown, errors), *notes]
        print_document(told | {"quarantined": len(quarantined), "notes": all_notes})
        return
    print_advice(ask, advice, shown, errors, explain=explain)
    if explain:
        typer.echo("\nassumed")
        print_notes(notes)


def _offers(clouds: str | None, kinds: str | None) -> tuple[list[Offer], list[Quarantined], str]:
    """What may be recommended, what may not, and the day of the newest price."""
    from sublet.cli.print.plan import names_from_text
    from sublet.errors import UnknownName
    from sublet.market.catalogue import load_catalogue
    from sublet.market.hygiene import outlived

    catalogue = load_catalogue()
    believed, stale = outlived(catalogue.listings)
    ids = {listing.id for listing in believed}
    wanted = {
        field: set(names_from_text(option, text))
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


def _profile(model: str, path: Path | None, batch: int | None) -> Profile:
    from sublet.advise.profiles import known_models, known_profile, profile_from_csv
    from sublet.domain.quantity import whole

    if batch is not None:
        whole("--batch", batch, 1)
    if path is not None:
        return profile_from_csv(path, name=model, **({} if batch is None else {"batch": batch}))
    if not model:
        raise InvalidValue("--model", model, f"one of {', '.join(known_models())}; or give --profile")
    return known_profile(model, batch)


def _count(text: str) -> float:
    number = text.strip().rstrip("kKMGB")
    try:
        return _above_0("--samples", float(number) * SCALES[text.strip()[len(number) :]])
    except (ValueError, KeyError):
        raise InvalidValue("--samples", text, "a number above 0, such as 50M, 2.5G or 300000") from None


def _hours(text: str | None) -> float:
    if text is None:
        return float("inf")
    number = text.strip().rstrip("minhd")
    try:
        return _above_0("--deadline", float(number) * HOURS[text.strip()[len(number) :].strip() or "h"])
    except (ValueError, KeyError):
        raise InvalidValue("--deadline", text, "a time above 0, such as 12h, 90m or 2d") from None


def _positive(option: str, text: str | None, unit: str) -> float:
    if text is None:
        return float("inf")
    amount = text.strip().removeprefix("USD").removeprefix("$").strip().removesuffix(unit).strip()
    try:
        return _above_0(option, float(amount))
    except ValueError:
        raise InvalidValue(option, text, f"dollars, a finite number above 0 such as 40{unit}") from None


def _above_0(option: str, value: float) -> float:
    from sublet.domain.quantity import positive

    positive(option, value)
    return value
