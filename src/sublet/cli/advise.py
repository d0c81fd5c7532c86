"""`sublet advise`: which machines to rent for one job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.show import command_line, print_json, print_notes, print_table
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.domain.offer import Offer
    from sublet.market.hygiene import Quarantined
    from sublet.planning.advise import Advice, Ask, Choice
    from sublet.planning.advise_hazard import Reclaims
    from sublet.planning.advise_profiles import Profile

__all__ = ["advise"]

SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
HOURS = {"m": 1 / 60, "min": 1 / 60, "h": 1.0, "d": 24.0}


def _complete_model(incomplete: str) -> list[str]:
    from sublet.planning.advise_profiles import known_models

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
    top: Annotated[int, typer.Option(metavar="N", help="Show so many points of the frontier.")] = 5,
    explain: Annotated[bool, typer.Option("--explain", help="Say where each figure comes from.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Which machines to rent for one job: time, dollars and risk, and what would change the answer."""
    from dataclasses import replace

    from sublet.domain.quantity import whole
    from sublet.market.gpus import load_gpus
    from sublet.planning.advise import Ask
    from sublet.planning.advise import advise as weigh
    from sublet.planning.advise_frontier import Limits

    whole("--top", top, 1)
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
    notes = _notes(ask, advice, quarantined, newest)
    if opt.wants_json(output, json):
        print_json(_json(context, ask, advice, quarantined, notes))
        return
    _print(ask, advice, top=top, explain=explain)
    if explain:
        typer.echo("\nassumed")
        print_notes(notes)


def _offers(clouds: str | None, kinds: str | None) -> tuple[list[Offer], list[Quarantined], str]:
    """What may be recommended, what may not, and the day of the newest price."""
    from sublet.cli.planned import names_from_text
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
    from sublet.domain.quantity import whole
    from sublet.planning.advise_profiles import known_models, known_profile, profile_from_csv

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


# ---------------------------------------------------------------------- how to answer


def _print(ask: Ask, advice: Advice, *, top: int, explain: bool) -> None:
    from sublet.planning.advise_keep import KEEPERS

    best = advice.best
    what = f"{ask.profile.name}, {ask.samples:,.0f} samples at a batch of {ask.profile.batch}"
    typer.echo(f"{what}: {_wanted(ask)}\n")
    shown = _shown(advice, top)
    rows = [
        [
            f"{'> ' if each == best else ''}{each}",
            _where(each),
            f"{each.hours:,.2f}",
            f"{each.usd:,.2f}",
            f"{each.usd_per_h:,.2f}",
            f"+{100 * each.risk:.0f}%",
            f"{each.reclaims:.1f}",
            each.how.partition(" by")[0].partition(" as")[0],
        ]
        for each in shown
    ]
    titles = ["cluster", "offer", "hours", "USD", "USD/h", "1 in 20", "reclaims", "speed"]
    print_table(titles, rows, words=(0, 1, 7))
    legend = (
        f"> is {ask.goal} within the limits; {len(shown)} of {len(advice.frontier)} points of the frontier of time, "
        "dollars and risk are shown (--top); 1 in 20: that much longer in one run of twenty"
    )
    notes = [
        legend,
        f"{KEEPERS[best.keeper]}" + (f", every {best.checkpoint_every_s:,.0f} s" if best.reclaims > 0 else ""),
        f"in the way: {_binding(advice)}",
        *advice.changes,
    ]
    typer.echo()
    print_notes(notes)
    if explain:
        typer.echo("\nwhy")
        print_notes([*_reasons(best), *_elsewhere(advice)])


def _shown(advice: Advice, top: int) -> list[Choice]:
    """The choice itself and points spread over the frontier, cheapest first."""
    points = list(advice.frontier)
    if advice.best not in points:
        points = sorted([*points, advice.best], key=lambda each: each.usd)
    if len(points) <= top:
        return points
    step = (len(points) - 1) / max(top - 1, 1)
    chosen = {round(step * place) for place in range(top)}
    best = points.index(advice.best)
    if best not in chosen:
        chosen.remove(min(chosen, key=lambda at: (abs(at - best), at)))
        chosen.add(best)
    return [points[at] for at in sorted(chosen)]


def _wanted(ask: Ask) -> str:
    limits = ask.limits
    said = []
    if "budget_usd" in limits.stated():
        said.append(f"for USD {limits.budget_usd:,.2f}")
    if "usd_per_h" in limits.stated():
        said.append(f"for USD {limits.usd_per_h:,.2f} per hour")
    if "deadline_h" in limits.stated():
        said.append(f"in {limits.deadline_h:,.1f} h")
    return " ".join([f"the {ask.goal}", *said])


def _binding(advice: Advice) -> str:
    from sublet.planning.advise import WORDS

    return " and ".join(WORDS[name] for name in advice.binding) or "nothing but the offers themselves"


def _reasons(best: Choice) -> list[str]:
    """How the figures of the choice come about."""
    nodes = f"{best.nodes} nodes" if best.nodes > 1 else "one node"
    speed = f"{best.rate:,.1f} samples per second on {best.gpus} x {best.offer.gpu}, {best.how}"
    rent = f"USD {best.usd_per_h:,.3f} per hour in all, for {best.hours:,.2f} h"
    reasons = [
        f"{speed}; within {100 * best.spread:.0f} % in two of three cases",
        f"{nodes} of {best.offer.gpus_per_node} GPUs at {rent}",
    ]
    if best.reclaims > 0:
        reasons.append(
            f"{best.reclaims:.1f} reclaims are to be expected; they and checkpoints every "
            f"{best.checkpoint_every_s:,.0f} s take {100 * best.lost_share:.1f} % of the time"
        )
    return reasons


def _elsewhere(advice: Advice) -> list[str]:
    """What the same nodes would do with checkpoints elsewhere."""
    from sublet.planning.advise_keep import KEEPERS

    return [f"instead {KEEPERS[each.keeper]}: {each.hours:,.2f} h, USD {each.usd:,.2f}" for each in advice.beside]


def _notes(ask: Ask, advice: Advice, quarantined: list[Quarantined], newest: str) -> list[str]:
    from sublet.planning.advise_hazard import reclaims_of

    notes = [
        f"speed: {ask.profile.source}; the batch stays the same on any number of GPUs",
        f"{advice.offers:,} offers and {advice.clusters:,} clusters were weighed; prices of {newest} and before",
        f"{len(quarantined):,} prices are quarantined and never recommended: zero, negative, far out, stale and so on",
        f"every start takes {ask.provision_s:g} s for nodes and {ask.profile.restart_s:g} s for the job, both paid for",
        f"a checkpoint has {ask.profile.state_bytes / 1024**3:,.2f} GiB; intervals are those of Young and Daly",
        "networks are as the clouds document them, else guessed from the number of GPUs of a node",
    ]
    spot = {(each.offer.cloud, each.offer.gpu) for each in advice.frontier if each.keeper != "nothing"}
    kinds: dict[Reclaims, list[str]] = {}
    for cloud, gpu in sorted(spot):
        kinds.setdefault(reclaims_of(cloud, gpu), []).append(f"{gpu} on {cloud}")
    for taken, names in kinds.items():
        span = f"{taken.low_per_h:.2f} to {taken.high_per_h:.2f}"
        notes.append(f"{taken.per_h:.2f} reclaims per node-hour ({span}), {taken.source}: {', '.join(names)}")
    return notes


def _where(choice: Choice) -> str:
    """The name to copy, without its market."""
    return choice.offer.id.rpartition(":")[0]


def _json(
    context: typer.Context, ask: Ask, advice: Advice, quarantined: list[Quarantined], notes: list[str]
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "command": command_line(context),
        "model": ask.profile.name,
        "samples": ask.samples,
        "batch": ask.profile.batch,
        "goal": ask.goal,
        "limits": {name: getattr(ask.limits, name) for name in ask.limits.stated()},
        "best": _json_from_choice(advice.best),
        "cheapest": _json_from_choice(advice.cheapest),
        "fastest": _json_from_choice(advice.fastest),
        "frontier": [_json_from_choice(each) for each in advice.frontier],
        "beside": [_json_from_choice(each) for each in advice.beside],
        "binding": list(advice.binding),
        "changes": list(advice.changes),
        "offers": advice.offers,
        "clusters": advice.clusters,
        "quarantined": len(quarantined),
        "notes": notes,
    }


def _json_from_choice(choice: Choice) -> dict[str, Any]:
    every_s = choice.checkpoint_every_s
    return {
        "offer": choice.offer.id,
        "spot_offer": choice.spot.id if choice.spot else None,
        "gpu": choice.offer.gpu,
        "nodes": choice.nodes,
        "gpus": choice.gpus,
        "market": "on-demand" if choice.keeper == "nothing" else "mixed" if choice.spot else "spot",
        "checkpoints": choice.keeper,
        "checkpoint_every_s": every_s if every_s < float("inf") else None,
        "hours": choice.hours,
        "late_h": choice.late_h,
        "risk": choice.risk,
        "usd": choice.usd,
        "usd_per_h": choice.usd_per_h,
        "samples_per_s": choice.rate,
        "reclaims": choice.reclaims,
        "lost_share": choice.lost_share,
        "speed": choice.how,
        "spread": choice.spread,
    }
