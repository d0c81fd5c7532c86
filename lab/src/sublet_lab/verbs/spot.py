"""`sublet spot`: one large job on a spot market, under several policies."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.parse.values import parse_dollars, parse_duration_s
from sublet.cli.print.tables import command_line, print_document
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible, InvalidValue, UnknownName

if TYPE_CHECKING:
    from sublet.market.spot import SpotTrace
    from sublet.perf.grids import SpotJob
    from sublet_lab.rides.deadline import Punctual
    from sublet_lab.rides.record import Record

POLICIES = ("liveput", "parcae", "greedy-live", "checkpoint-restart", "bamboo", "oracle", "ideal", "parcae-truth")
NUMBERS = ("nan", "inf", "-inf")  # no price: refused as numbers, not as texts
USUAL = ",".join(POLICIES[:6])
MOST_INSTANCES = 32  # speeds were measured on clusters of up to so many
DEFAULT_USD_PER_H = "0.918"  # p3.2xlarge, spot, in the public price traces
DEFAULT_ON_DEMAND_USD_PER_H = "3.06"  # the same on demand, in Bamboo's simulator
ON_TIME = "on-time"  # the run with a deadline


def _complete_model(incomplete: str) -> list[str]:
    from sublet.perf.parcae import PARCAE_MODELS

    return [name for name in PARCAE_MODELS if name.startswith(incomplete)]


def _complete_policies(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in POLICIES if name.startswith(last)]


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
            metavar="A,B,...", help=f"Any of {', '.join(POLICIES)}, or all.", autocompletion=_complete_policies
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
    """With sublet-lab: one large job on a record of a spot market, policy by policy.

    Samples, dollars, migrations and suspended time are told of each.
    """
    from sublet.market.traces import load_trace
    from sublet.sim.report.folder import prepare_folder
    from sublet_lab.rides import runs as work
    from sublet_lab.rides.report import SpotRuns, write_spot_report
    from sublet_lab.verbs.ride_tables import (
        json_from_runs,
        note_on_deadline,
        notes_on_runs,
        print_runs,
        print_zone_runs,
    )

    names = _parse_policies(policy)
    usd_per_h = _parse_usd("--price", price, least=0.0)
    usd_per_sample = None if value is None else _parse_usd("--value", value)
    job = _find_job(model)
    markets = [load_trace(trace, polarity=opt.meaning_of(polarity)) for trace in traces]
    od_usd_per_h = _parse_usd("--on-demand", on_demand, least=usd_per_h)
    plan = _deadline_policy(deadline, samples, usd_per_h=usd_per_h, on_demand_usd_per_h=od_usd_per_h)
    document = opt.wants_document(output, json)
    if by_zone or len(markets) > 1:
        also = {"--deadline": plan, "--frontier": frontier, "--value": value, "--zone": zone, "--notice": notice}
        _refuse_beside_zones({**also, "--report": report, "--most": most != MOST_INSTANCES})
        if hours is not None:
            _check_hours(hours, markets)
        by_zones = work.run_zones(markets, model, usd_per_h=usd_per_h, hours=hours)
        labels, command = [market.name for market in markets], command_line(context)
        print_zone_runs(by_zones, labels, command=command, every_s=work.OFTEN_S, document=document)
        return
    _refuse_too_few(job, most)
    trace, record = _find_record(markets[0], zone, most=most, hours=hours)
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


def _parse_policies(text: str) -> list[str]:
    """`liveput,oracle`, or `all`."""
    names = list(POLICIES) if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise UnknownName("spot policy", name, POLICIES)
    if len(set(names)) < len(names):
        raise InvalidValue("--policy", text, "without a policy twice")
    return names


def _parse_usd(option: str, text: str, *, least: float | None = None) -> float:
    """Dollars of at least `least`; without it, above 0."""
    from sublet.domain.quantity import at_least, positive

    if (word := text.strip().lower()) in NUMBERS:
        usd = float(word)
    else:
        usd = parse_dollars(option, text, allowed="dollars, such as 0.9 or 2e-5")
    if least is None:
        positive(option, usd)
    else:
        at_least(option, usd, least)
    return usd


def _find_job(model: str) -> SpotJob:
    """A model that was measured."""
    from sublet.perf.parcae import PARCAE_MODELS, measured_job

    if model not in PARCAE_MODELS:
        raise UnknownName("spot model", model, PARCAE_MODELS)
    return measured_job(model)


def _refuse_too_few(job: SpotJob, most: int) -> None:
    """A model that does not fit on as many instances as may be taken would never train."""
    from sublet.domain.quantity import whole

    whole("--most", most, 1)
    if most < job.least:
        hint = f"--most {job.least} or more, or a smaller model (--model)"
        raise Infeasible(f"{job.name} cannot run", binding="--most", needed=job.least, available=most, hint=hint)


def _find_record(market: SpotTrace, zone: str | None, *, most: int, hours: float | None) -> tuple[SpotTrace, Record]:
    """The trace, or one zone of it, and its instances at every minute and change, all zones together."""
    from dataclasses import replace

    from sublet_lab.rides.record import record_of

    if zone is not None:
        if zone not in market.zones:
            raise UnknownName("zone", zone, market.zones)
        end_s = market.end_s[zone]
        market = replace(market, series={zone: market.series[zone]}, end_s={zone: end_s}, span_s=end_s)
    if hours is not None:
        _check_hours(hours, [market])
    ticks = None if hours is None else max(1, round(hours * 60.0))
    return market, record_of(market, most=most, ticks=ticks)


def _check_hours(hours: float, markets: Sequence[SpotTrace]) -> None:
    """Nothing is known of the time after the record, so nothing is said of it."""
    from sublet.domain.quantity import positive

    positive("--hours", hours)
    recorded_h = min(market.span_s for market in markets) / SECONDS_PER_H
    if hours > recorded_h + 0.01:  # the figure is printed with two digits
        shortest = min(markets, key=lambda market: market.span_s).name
        raise InvalidValue("--hours", hours, f"within the record: {shortest} has {recorded_h:.2f} hours")


def _deadline_policy(
    deadline: str | None, samples: float | None, *, usd_per_h: float, on_demand_usd_per_h: float
) -> Punctual | None:
    """The work and its deadline, if given."""
    from sublet.domain.quantity import positive
    from sublet_lab.rides.deadline import Punctual

    if deadline is None and samples is None:
        return None
    if deadline is None or samples is None:
        missing = "--deadline" if deadline is None else "--samples"
        raise InvalidValue(missing, None, "given: a deadline is so many --samples within --deadline")
    positive("--samples", samples)
    within_s = parse_duration_s("--deadline", deadline, allowed="a duration above 0, such as 8h, 90m or 1h30m")
    return Punctual(samples=samples, within_s=within_s, usd_per_h=usd_per_h, on_demand_usd_per_h=on_demand_usd_per_h)


def _refuse_beside_zones(given: Mapping[str, object]) -> None:
    """Zones go with no other question so far."""
    also = [name for name, value in given.items() if value]
    if also:
        raise InvalidValue("--by-zone", True, f"without {', '.join(also)}")
