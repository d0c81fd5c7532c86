"""`sublet advise`: which machines to rent for one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.parse.values import parse_count, parse_dollars, parse_duration_s
from sublet.cli.print.advice import caveats, has_predictions, json_from_advice, notes_on_advice, print_advice
from sublet.cli.print.tables import print_document, print_notes
from sublet.domain.units import GIB, SECONDS_PER_H

if TYPE_CHECKING:
    from sublet.advise.adviser import Advice, Ask, ClusterChoice
    from sublet.sim.advice.replay import ReplayedWindows

__all__ = ["advise"]


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
        str | None,
        typer.Option(
            metavar="NAME|CSV",
            help="Your own figures instead: a name or file from 'sublet profiles', or a table with the columns gpu, "
            "gpus and samples_per_s.",
        ),
    ] = None,
    as_gpu: Annotated[
        str, typer.Option(metavar="GPU", help="Take a --profile that was measured on CPUs for one of this kind.")
    ] = "",
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
    from sublet.cli.parse.advice import profile_from, recommendable_offers
    from sublet.domain.quantity import positive, whole
    from sublet.market.catalogue import load_gpus

    whole("--top", top, 1)
    whole("--seed", seed)
    limits = Limits(
        budget_usd=_parse_limit("--budget", budget, ""),
        usd_per_h=_parse_limit("--max-rate", max_rate, "/h"),
        deadline_h=_parse_hours(deadline),
    )
    known = profile_from(model, profile, batch, as_gpu)
    if state_gib is not None:
        positive("--state-gib", state_gib)
        known = replace(known, state_bytes=state_gib * GIB)
    ask = Ask(
        profile=known,
        samples=parse_count("--samples", samples),
        limits=limits,
        goal="fastest" if limits.stated() and deadline is None else "cheapest",
        most_nodes=most_nodes,
    )
    offers, quarantined, newest = recommendable_offers(clouds, kinds)
    advice = weigh(ask, offers, load_gpus())
    shown = _replay_points(ask, advice, top, seed)
    errors = left_out(known, load_gpus()) if has_predictions(shown) else []
    notes = notes_on_advice(ask, advice, quarantined, newest)
    if opt.wants_document(output, json):
        answer = json_from_advice(context, ask, advice, shown, errors)
        all_notes = [*caveats(ask, shown, errors), *notes]
        print_document(answer | {"quarantined": len(quarantined), "notes": all_notes})
        return
    print_advice(ask, advice, shown, errors, explain=explain)
    if explain:
        typer.echo("\nassumed")
        print_notes(notes)


def _replay_points(ask: Ask, advice: Advice, top: int, seed: int) -> dict[ClusterChoice, ReplayedWindows]:
    """The few to be shown, each under the same luck."""
    import numpy as np

    from sublet.sim.advice.replay import replay_choice

    return {each: replay_choice(each, ask, rng=np.random.default_rng(seed)) for each in _pick_points(advice, top)}


def _pick_points(advice: Advice, top: int) -> list[ClusterChoice]:
    """The choice itself and points spread over the frontier, cheapest first."""
    points = list(advice.frontier)
    if len(points) <= top:
        return points
    step = (len(points) - 1) / max(top - 1, 1)
    chosen = {round(step * place) for place in range(top)}
    best = points.index(advice.best)
    if best not in chosen:
        chosen.remove(min(chosen, key=lambda at: (abs(at - best), at)))
        chosen.add(best)
    return [points[at] for at in sorted(chosen)]


def _parse_hours(text: str | None) -> float:
    if text is None:
        return float("inf")
    return (
        parse_duration_s("--deadline", text, unit="h", allowed="a time above 0, such as 12h, 90m or 2d") / SECONDS_PER_H
    )


def _parse_limit(option: str, text: str | None, unit: str) -> float:
    if text is None:
        return float("inf")
    allowed = f"dollars, a finite number above 0 such as 40{unit}"
    return parse_dollars(option, text, unit=unit, allowed=allowed, above_0=True)
