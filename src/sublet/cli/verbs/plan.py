"""`sublet plan`: what to rent for work that keeps arriving, on a budget."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.parse.scenario import ScenarioOptions, workload_from
from sublet.cli.parse.values import parse_names, parse_price, parse_quotas
from sublet.cli.print.tables import command_line, print_document
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.domain.offer import Offer

__all__ = ["plan"]


RECLAIMS_PER_H = 1 / 3  # per node; the bundled spot traces have 0.27 to 1.07 (sublet traces)
CHECKPOINT_S = 300.0  # between two checkpoints of a job that states none


def _complete_kinds(incomplete: str) -> list[str]:
    """The last of several kinds of GPU, separated by commas."""
    from sublet.market.catalogue import load_gpus

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in load_gpus() if name.startswith(last)]


def _complete_markets(incomplete: str) -> list[str]:
    return [text for text in ("on-demand", "spot", "spot,on-demand") if text.startswith(incomplete)]


def plan(  # noqa: PLR0913 - one argument per option
    context: typer.Context,
    workload: opt.WorkloadName,
    budget: Annotated[str, typer.Option(metavar="USD/H", help="What may be spent, on average: 15, USD 15 or 15/h.")],
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="GPU,GPU",
            help="Kinds of GPU to rent. [default: all on which every job has a speed]",
            autocompletion=_complete_kinds,
        ),
    ] = None,
    markets: Annotated[
        str | None,
        typer.Option(
            metavar="MARKET,MARKET",
            help="on-demand, spot or both. [default: both]",
            autocompletion=_complete_markets,
        ),
    ] = None,
    quota: Annotated[
        list[str] | None, typer.Option(metavar="GPU=N", help="Hold at most N of this kind on average; repeatable.")
    ] = None,
    offer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLOUD:TYPE[:REGION][:spot]",
            help="What to rent, from 'sublet offers'; repeatable. "
            "[default: the cheapest of each kind, market and size]",
        ),
    ] = None,
    reclaims_per_h: Annotated[
        float,
        typer.Option(
            metavar="N",
            help="How often a spot node is taken back, where the offer does not say. [default: 1/3]",
            show_default=False,
        ),
    ] = RECLAIMS_PER_H,
    checkpoint_s: Annotated[
        float, typer.Option(metavar="S", help="Between two checkpoints, for jobs that do not say.")
    ] = CHECKPOINT_S,
    provision_s: Annotated[
        float, typer.Option(metavar="S", help="From renting a node to using it, paid for at every start.")
    ] = 0.0,
    first_jobs: opt.FirstJobs = None,
    speedup: opt.Speedup = None,
    profile: opt.MeasuredProfile = None,
    restart_s: opt.RestartS = None,
    report: opt.Report = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """A plan to rent for a workload on a budget, its reasons, and the gain of more money."""
    from sublet.cli.parse.offers import cheapest_quotes, find_quotes
    from sublet.cli.print.plan import notes_on_offers, notes_on_plan, print_plan
    from sublet.domain.offer import Market
    from sublet.domain.quantity import at_least, positive
    from sublet.rental.plan import rental_plan
    from sublet.sim.report.folder import prepare_folder
    from sublet.sim.report.frontier import PlanReport, json_from_plan, write_plan_report

    at_least("--reclaims-per-h", reclaims_per_h, 0.0)
    positive("--checkpoint-s", checkpoint_s)
    at_least("--provision-s", provision_s, 0.0)
    usd_per_h = parse_price("--budget", budget).usd_per_h
    quotas = parse_quotas(quota or ())
    options = ScenarioOptions(workload=workload, jobs=first_jobs, speedup=speedup, profile=profile, restart_s=restart_s)
    found = workload_from(options)
    notes: list[str] = []
    if offer:
        if kinds or markets:
            raise InvalidValue("--offer", offer, "left out with --kinds and --markets: it names both")
        quotes = find_quotes(offer)
    else:
        wanted = parse_names("--kinds", kinds) if kinds is not None else None
        on = parse_names("--markets", markets) if markets is not None else list(Market)
        quotes, notes = cheapest_quotes(found.jobs, wanted, on)
    if report is not None:
        prepare_folder(report)
    jobs = [
        replace(job, checkpoint_every_s=checkpoint_s) if math.isinf(job.checkpoint_every_s) else job
        for job in found.jobs
    ]
    quotes = [replace(quote, offer=_with_reclaims(quote.offer, reclaims_per_h)) for quote in quotes]
    offers = [quote.offer for quote in quotes]
    made = rental_plan(jobs, offers, usd_per_h, quotas=quotas, provision_s=provision_s)
    if any(each.market is Market.SPOT for each in offers):
        notes.append(
            f"assumed of spot nodes: each is taken back {reclaims_per_h:.2g} times per hour (--reclaims-per-h), at the "
            f"cost of a restart and half of the {checkpoint_s:g} s between two checkpoints (--checkpoint-s)"
        )
    today = datetime.now(UTC).date()
    notes = [
        *notes_on_offers(made, quotes, today),
        *notes,
        *notes_on_plan(made, provision_s, quotas),
        *found.notes,
    ]
    answer = PlanReport(
        plan=made, workload=found, command=command_line(context), quotes=tuple(quotes), notes=tuple(notes)
    )
    page = None if report is None else write_plan_report(answer, report)
    as_json = opt.wants_document(output, json)
    if as_json:
        print_document(json_from_plan(answer))
    else:
        print_plan(answer)
    if page is not None:
        typer.echo(f"report: {page}", err=as_json)


def _with_reclaims(offer: Offer, per_h: float) -> Offer:
    """A spot offer that says nothing of reclaims has those that are assumed."""
    from sublet.domain.offer import Market

    return replace(offer, hazard_per_h=per_h) if offer.market is Market.SPOT and not offer.hazard_per_h else offer
