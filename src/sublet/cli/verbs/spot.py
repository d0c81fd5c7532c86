"""`sublet spot`: one large job rides a spot market under several policies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print import spot as more
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table
from sublet.cli.verbs.forecast import TRACE

if TYPE_CHECKING:
    from sublet.market.spot import SpotTrace
    from sublet.sim.one_job import Ride
    from sublet.sim.report.spot import SpotRides
    from sublet.spot.deadline import Punctual
    from sublet.spot.job import SpotJob
    from sublet.spot.policies import SpotPolicy
    from sublet.spot.record import Record

__all__ = ["spot"]

POLICIES = ("liveput", "parcae", "greedy-live", "checkpoint-restart", "bamboo", "oracle", "ideal", "parcae-truth")
USUAL = ",".join(POLICIES[:6])
MOST_INSTANCES = 32  # speeds were measured on clusters of up to so many
DEFAULT_USD_PER_H = "0.918"  # p3.2xlarge, spot, in the public price traces
DEFAULT_ON_DEMAND_USD_PER_H = "3.06"  # the same on demand, in Bamboo's simulator
ON_TIME = "on-time"  # the ride with a deadline
MEASURED_ON = "V100"


def _complete_model(incomplete: str) -> list[str]:
    from sublet.perf.parcae import PARCAE_MODELS

    return [name for name in PARCAE_MODELS if name.startswith(incomplete)]


def _complete_policies(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in POLICIES if name.startswith(last)]


def spot(  # noqa: PLR0913 - one argument per option
    context: typer.Context,
    traces: Annotated[list[str], TRACE],
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
    hours: Annotated[float | None, typer.Option(metavar="H", help="Ride only the first H hours.")] = None,
    polarity: opt.Means = None,
    report: opt.Report = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Samples, dollars, migrations and suspended time of one large job on preemptible instances, policy by policy."""
    from sublet.market.traces import load_trace
    from sublet.sim.one_job import ride
    from sublet.sim.report.folder import prepare_folder
    from sublet.sim.report.spot import SpotRides, rows_from_rides, write_spot_report
    from sublet.spot.record import Record

    names = _names(policy)
    usd_per_h = _dollars("--price", price, least=0.0)
    usd_per_sample = None if value is None else _dollars("--value", value)
    job = _job(model)
    markets = [load_trace(trace, polarity=opt.meaning_of(polarity)) for trace in traces]
    od_usd_per_h = _dollars("--on-demand", on_demand, least=usd_per_h)
    plan = more.deadline_plan(deadline, samples, usd_per_h=usd_per_h, on_demand_usd_per_h=od_usd_per_h)
    if by_zone or len(markets) > 1:
        asked = {"--deadline": plan, "--frontier": frontier, "--value": value, "--zone": zone, "--notice": notice}
        _alone({**asked, "--report": report})
        more.spot_by_zone(
            context, markets, model, usd_per_h=usd_per_h, hours=hours, as_json=opt.wants_document(output, json)
        )
        return
    market = markets[0]
    capacity = _capacity(market, zone, most=most, hours=hours)
    if report is not None:
        prepare_folder(report)
    record = Record(capacity=capacity)
    _within(plan, record)
    by_name = _policies(job, market.name, capacity, usd_per_h=usd_per_h, usd_per_sample=usd_per_sample, notice_s=notice)
    rides = {}
    for each in names:
        if not quiet and sys.stderr.isatty():
            typer.echo(f"{each}, {len(capacity):,} minutes", err=True)
        rides[each] = ride(job, by_name[each], record, notice_s=notice, usd_per_h=usd_per_h)
    if plan is not None:
        rides[ON_TIME] = ride(job, plan, record, usd_per_h=usd_per_h, on_demand_usd_per_h=od_usd_per_h)
    found = SpotRides(
        job=job,
        trace=market.name,
        capacity=capacity,
        rides=rides,
        usd_per_sample=usd_per_sample,
        frontier=more.frontier_rides(job, record, usd_per_h=usd_per_h, notice_s=notice) if frontier else {},
    )
    notes = _notes(found, market, usd_per_h=usd_per_h, zone=zone, most=most)
    if notice:
        notes.append(f"losses are announced {notice:g} s ahead; liveput and oracle prepare for them, the others do not")
    if plan is not None:
        notes.append(_on_time(plan, rides[ON_TIME], od_usd_per_h))
    facts = _json(command_line(context), found, usd_per_h, notes)
    if opt.wants_document(output, json):
        print_document(facts)
    else:
        typer.echo(f"{job.name} on {market.name}, {found.span_s / 3600:,.1f} h\n")
        print_table(*rows_from_rides(found), words=(0,))
        typer.echo()
        print_notes(notes)
    if report is not None:
        page = write_spot_report(found, report, facts=facts, notes=notes, command=command_line(context))
        typer.echo(f"report: {page}", err=opt.wants_document(output, json))


# ---------------------------------------------------------------------- what was asked


def _names(text: str) -> list[str]:
    from sublet.errors import InvalidValue, UnknownName

    names = list(POLICIES) if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise UnknownName("spot policy", name, POLICIES)
    if len(set(names)) < len(names):
        raise InvalidValue("--policy", text, "without a policy twice")
    return names


def _dollars(option: str, text: str, *, least: float | None = None) -> float:
    from sublet.domain.quantity import at_least, positive
    from sublet.errors import InvalidValue

    try:
        usd = float(text.strip().removeprefix("USD").removeprefix("$").strip())
    except ValueError:
        raise InvalidValue(option, text, "dollars, such as 0.9 or 2e-5") from None
    if least is None:
        positive(option, usd)
    else:
        at_least(option, usd, least)
    return usd


def _job(model: str) -> SpotJob:
    from sublet.errors import UnknownName
    from sublet.perf.parcae import PARCAE_MODELS
    from sublet.studies.liveput.study import job_of

    if model not in PARCAE_MODELS:
        raise UnknownName("spot model", model, PARCAE_MODELS)
    return job_of(model)


def _capacity(market: SpotTrace, zone: str | None, *, most: int, hours: float | None) -> tuple[int, ...]:
    """Instances at every minute."""
    from sublet.domain.quantity import whole
    from sublet.errors import UnknownName
    from sublet.sim.one_job import capacity_of

    whole("--most", most, 1)
    if zone is None:
        capacity = capacity_of(market)
    elif zone in market.zones:
        capacity = [market.value_at(zone, 60.0 * tick) for tick in range(int(market.end_s[zone] // 60.0) + 1)]
    else:
        raise UnknownName("zone", zone, market.zones)
    if hours is not None:
        more.refuse_beyond_record(hours, [market])
        capacity = capacity[: max(1, round(hours * 60.0))]
    return tuple(min(each, most) for each in capacity)


def _alone(asked: dict[str, object]) -> None:
    """Zones go with no other question so far."""
    from sublet.errors import InvalidValue

    also = [name for name, given in asked.items() if given]
    if also:
        raise InvalidValue("--by-zone", True, f"without {', '.join(also)}")


def _within(plan: Punctual | None, record: Record) -> None:
    from sublet.errors import InvalidValue

    if plan is not None and plan.within_s > record.span_s:
        raise InvalidValue(
            "--deadline", f"{plan.within_s / 3600:g}h", f"within the {record.span_s / 3600:.3g} h of the ride"
        )


# ---------------------------------------------------------------------- the rides


def _policies(
    job: SpotJob,
    name: str,
    capacity: tuple[int, ...],
    *,
    usd_per_h: float,
    usd_per_sample: float | None,
    notice_s: float,
) -> dict[str, SpotPolicy]:
    """Everyone, by a name without commas."""
    from sublet.spot.job import Money
    from sublet.spot.liveput import Liveput
    from sublet.studies.liveput.study import Part, policies

    known = policies(job, Part(name=name, capacity=capacity, before=()), notice_s=notice_s)
    by_name: dict[str, SpotPolicy] = {key.replace(", ", "-"): policy for key, policy in known.items()}
    if usd_per_sample is not None:
        by_name["liveput"] = Liveput(money=Money(usd_per_sample=usd_per_sample, usd_per_h=usd_per_h))
    return by_name


def _on_time(plan: Punctual, done: Ride, od_usd_per_h: float) -> str:
    """Whether it was, and what on demand had to do with it."""
    ended = "on time" if done.samples >= plan.samples else f"only {done.samples / plan.samples:.1%} done: too late"
    return (
        f"{ON_TIME}: {plan.samples:,.0f} samples within {plan.within_s / 3600:g} h, {ended}, with"
        f" {done.on_demand_h:,.1f} instance-hours on demand at USD {od_usd_per_h:g}"
    )


def _least_usd(job: SpotJob, usd_per_h: float) -> float:
    """A sample in the thriftiest grid."""
    return usd_per_h / 3600.0 / float((job.rate_C[1:] / job.use_C[1:]).max())


# ---------------------------------------------------------------------- how to answer


def _notes(found: SpotRides, market: SpotTrace, *, usd_per_h: float, zone: str | None, most: int) -> list[str]:
    job = found.job
    where = f"zone {zone}" if zone else f"{len(market.zones)} zones together" if len(market.zones) > 1 else "one zone"
    least = f"a sample costs USD {_least_usd(job, usd_per_h):.3g} at the least"
    paid = f"every instance that is to be had is held at USD {usd_per_h:g} per hour, suspended or not"
    if found.usd_per_sample is not None and "liveput" in found.rides:
        paid += f", but by liveput only while it earns USD {found.usd_per_sample:g} a sample"
    notes = [
        f"{where}, at most {most} instances, parcae decides once a minute; migrations include repairs of the same grid",
        f"{paid}; {least}",
        f"speeds and costs of migration are Parcae's, of p3.2xlarge ({MEASURED_ON})"
        + (f"; the trace is of {market.gpu}" if market.gpu not in ("", MEASURED_ON) else ""),
    ]
    notes.extend(market.notes)
    if max(found.capacity) < job.least:
        notes.append(f"{job.name} needs {job.least} instances, and there were never more than {max(found.capacity)}")
    if {"oracle", "ideal", "parcae-truth"} & set(found.rides):
        notes.append("bounds in samples: oracle and parcae-truth know the future, and for ideal migrations are free")
    return notes


def _json(command: str, found: SpotRides, usd_per_h: float, notes: list[str]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "command": command,
        "trace": found.trace,
        "model": found.job.name,
        "minutes": len(found.capacity),
        "mean_instances": sum(found.capacity) / len(found.capacity),
        "usd_per_h": usd_per_h,
        "usd_per_sample": found.usd_per_sample,
        "policies": [
            {
                "name": name,
                "samples": ride.samples,
                "usd": ride.usd,
                "samples_per_usd": ride.samples_per_usd,
                "migrations": ride.changes,
                "suspended_s": ride.suspended_s,
                "on_demand_h": ride.on_demand_h,
                "net_usd": found.net_usd(ride),
            }
            for name, ride in {**found.rides, **found.frontier}.items()
        ],
        "notes": notes,
    }
