"""`sublet spot`: one large job on a spot market, under several policies."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.parse import spot as parse
from sublet.cli.print.tables import command_line, print_document
from sublet.domain.units import SECONDS_PER_H

__all__ = ["spot"]

USUAL = ",".join(parse.POLICIES[:6])
MOST_INSTANCES = 32  # speeds were measured on clusters of up to so many
DEFAULT_USD_PER_H = "0.918"  # p3.2xlarge, spot, in the public price traces
DEFAULT_ON_DEMAND_USD_PER_H = "3.06"  # the same on demand, in Bamboo's simulator
ON_TIME = "on-time"  # the run with a deadline


def _complete_model(incomplete: str) -> list[str]:
    from sublet.perf.parcae import PARCAE_MODELS

    return [name for name in PARCAE_MODELS if name.startswith(incomplete)]


def _complete_policies(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in parse.POLICIES if name.startswith(last)]


def spot(  # noqa: PLR0913 - one argument per option
    context: typer.Context,
    traces: Annotated[list[str], opt.TRACE],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What is trained: bert, resnet152, gpt-1.5b or gpt-6.7b.",
            autocompletion=_complete_model,
        ),
    ] = "bert",
    policy: Annotated[
        str,
        typer.Option(
            metavar="A,B,...", help=f"Any of {', '.join(parse.POLICIES)}, or all.", autocompletion=_complete_policies
        ),
    ] = USUAL,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="USD",
            help="What a sample is worth: liveput then gives back instances that do not earn their rent.",
        ),
    ] = None,
    price: Annotated[str, typer.Option(metavar="USD/H", help="Rent of an instance.")] = DEFAULT_USD_PER_H,
    notice: Annotated[
        float, typer.Option(metavar="S", help="Losses are announced so many seconds ahead; liveput prepares for them.")
    ] = 0.0,
    deadline: Annotated[
        str | None, typer.Option(metavar="8h", help="Finish --samples by then: on demand where spot is too slow.")
    ] = None,
    samples: Annotated[float | None, typer.Option(metavar="N", help="How many by the --deadline.")] = None,
    on_demand: Annotated[
        str, typer.Option(metavar="USD/H", help="Rent of an instance on demand, for a --deadline.")
    ] = DEFAULT_ON_DEMAND_USD_PER_H,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Also liveput from the cheapest to the fastest, by value of a sample.")
    ] = False,
    by_zone: Annotated[
        bool, typer.Option("--by-zone", help="Choose zones together with the grid; several traces mean the same.")
    ] = False,
    zone: Annotated[str | None, typer.Option(metavar="ZONE", help="Use this zone only, not all together.")] = None,
    most: Annotated[int, typer.Option(metavar="N", help="Take at most N instances.")] = MOST_INSTANCES,
    hours: Annotated[float | None, typer.Option(metavar="H", help="Take only the first H hours of the record.")] = None,
    polarity: opt.Means = None,
    report: opt.Report = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Samples, dollars, migrations and suspended time of one large job on preemptible instances, policy by policy."""
    from sublet.cli.print.spot import json_from_runs, note_on_deadline, notes_on_runs, print_runs, print_zone_runs
    from sublet.cli.work import spot as work
    from sublet.errors import InvalidValue
    from sublet.market.traces import load_trace
    from sublet.sim.report.folder import prepare_folder
    from sublet.sim.report.spot import SpotRuns, write_spot_report

    names = parse.parse_policies(policy)
    usd_per_h = parse.parse_usd("--price", price, least=0.0)
    usd_per_sample = None if value is None else parse.parse_usd("--value", value)
    job = parse.find_job(model)
    markets = [load_trace(trace, polarity=opt.meaning_of(polarity)) for trace in traces]
    od_usd_per_h = parse.parse_usd("--on-demand", on_demand, least=usd_per_h)
    plan = parse.deadline_policy(deadline, samples, usd_per_h=usd_per_h, on_demand_usd_per_h=od_usd_per_h)
    document = opt.wants_document(output, json)
    if by_zone or len(markets) > 1:
        also = {"--deadline": plan, "--frontier": frontier, "--value": value, "--zone": zone, "--notice": notice}
        parse.refuse_beside_zones({**also, "--report": report, "--most": most != MOST_INSTANCES})
        if hours is not None:
            parse.check_hours(hours, markets)
        by_zones = work.run_zones(markets, model, usd_per_h=usd_per_h, hours=hours)
        labels, command = [market.name for market in markets], command_line(context)
        print_zone_runs(by_zones, labels, command=command, every_s=work.OFTEN_S, document=document)
        return
    parse.refuse_too_few(job, most)
    trace, record = parse.find_record(markets[0], zone, most=most, hours=hours)
    capacity = record.capacity
    if report is not None:
        prepare_folder(report)
    market = work.market_of(trace, record, most=most, usd_per_h=usd_per_h, notice_s=notice)
    if plan is not None and plan.within_s > market.record.span_s:
        allowed = f"within the {market.record.span_s / SECONDS_PER_H:.3g} h of the record"
        raise InvalidValue("--deadline", f"{plan.within_s / SECONDS_PER_H:g}h", allowed)

    def begin(name: str) -> None:
        if not quiet and sys.stderr.isatty():
            typer.echo(f"{name}, {len(capacity):,} minutes", err=True)

    runs = work.run_policies(job, names, market, usd_per_sample=usd_per_sample, begin=begin)
    if plan is not None:
        runs[ON_TIME] = work.run_deadline(job, plan, market)
    found = SpotRuns(
        job=job,
        trace=trace.name,
        capacity=capacity,
        runs=runs,
        usd_per_sample=usd_per_sample,
        frontier=work.run_frontier(job, market) if frontier else {},
    )
    notes = notes_on_runs(found, trace, usd_per_h=usd_per_h, notice_s=notice, zone=zone, most=most)
    if plan is not None:
        notes.append(note_on_deadline(ON_TIME, plan, runs[ON_TIME]))
    facts = json_from_runs(command_line(context), found, usd_per_h, notes)
    if document:
        print_document(facts)
    else:
        print_runs(found, notes)
    if report is not None:
        page = write_spot_report(found, report, facts=facts, notes=notes, command=command_line(context))
        typer.echo(f"report: {page}", err=document)
