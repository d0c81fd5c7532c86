"""More of `sublet spot`: deadlines, the way from the cheapest to the fastest, and zones chosen with the grid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.tables import command_line, print_document, print_notes, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sublet.market.spot import SpotTrace
    from sublet.sim.one_job import Ride
    from sublet.spot.deadline import Punctual
    from sublet.spot.job import SpotJob
    from sublet.spot.record import Record

__all__ = ["deadline_plan", "frontier_rides", "seconds_from", "spot_by_zone"]

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
VALUES = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)  # of a sample, as multiples of what it costs at the least
OFTEN_S = 300.0  # between decisions where zones are chosen


def seconds_from(option: str, text: str) -> float:
    """A duration such as 8h, 90m or 1h30m."""
    from sublet.errors import InvalidValue

    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.strip() or not seconds > 0:
        raise InvalidValue(option, text, "a duration above 0, such as 8h, 90m or 1h30m")
    return seconds


def deadline_plan(
    deadline: str | None, samples: float | None, *, usd_per_h: float, on_demand_usd_per_h: float
) -> Punctual | None:
    """What has to be done by when, if it was said."""
    from sublet.domain.quantity import positive
    from sublet.errors import InvalidValue
    from sublet.spot.deadline import Punctual

    if deadline is None and samples is None:
        return None
    if deadline is None or samples is None:
        missing = "--deadline" if deadline is None else "--samples"
        raise InvalidValue(missing, None, "given: a deadline is so many --samples within --deadline")
    positive("--samples", samples)
    within_s = seconds_from("--deadline", deadline)
    return Punctual(samples=samples, within_s=within_s, usd_per_h=usd_per_h, on_demand_usd_per_h=on_demand_usd_per_h)


def frontier_rides(job: SpotJob, record: Record, *, usd_per_h: float, notice_s: float) -> dict[str, Ride]:
    """Liveput from the cheapest to the fastest, by the value of a sample in dollars."""
    from sublet.sim.one_job import ride
    from sublet.spot.job import Money
    from sublet.spot.liveput import Liveput
    from sublet.studies.liveput.money import least_usd_per_sample

    least, found = least_usd_per_sample(job, usd_per_h), {}
    for times in VALUES:
        money = Money(usd_per_sample=times * least, usd_per_h=usd_per_h)
        found[f"liveput, value {times * least:.3g}"] = ride(
            job, Liveput(money=money), record, notice_s=notice_s, usd_per_h=usd_per_h
        )
    return found


def refuse_beyond_record(hours: float, markets: Sequence[SpotTrace]) -> None:
    """Nothing is known of the time after the record, so nothing is said of it."""
    from sublet.domain.quantity import positive
    from sublet.errors import InvalidValue

    positive("--hours", hours)
    recorded_h = min(market.span_s for market in markets) / 3600.0
    if hours > recorded_h + 0.01:  # the figure is printed with two digits
        shortest = min(markets, key=lambda market: market.span_s).name
        raise InvalidValue("--hours", hours, f"within the record: {shortest} has {recorded_h:.2f} hours")


# ---------------------------------------------------------------------- zones


def spot_by_zone(
    context: typer.Context,
    markets: Sequence[SpotTrace],
    model: str,
    *,
    usd_per_h: float,
    hours: float | None,
    as_json: bool,
) -> None:
    """Every way to choose in all zones, and liveput in each alone."""
    from sublet.errors import Infeasible
    from sublet.sim.many_zones import have_of, ride_zones
    from sublet.spot.zones import Links
    from sublet.studies.liveput.places import CHOOSES, zoned_job

    if hours is not None:
        refuse_beyond_record(hours, markets)
    span_s = None if hours is None else hours * 3600.0
    zones, have_T = have_of(markets, step_s=OFTEN_S, span_s=span_s)
    job = zoned_job(model, zones, have_T, step_s=OFTEN_S, links=Links())
    most = {zone: max(have[place] for have in have_T) for place, zone in enumerate(zones)}
    least = job.job.least
    if max(most.values()) < least:
        hint = "take a smaller model, or other traces ('sublet traces')"
        if max(map(sum, have_T)) >= least:
            hint = (
                f"leave --by-zone out: all zones together have up to {max(map(sum, have_T))}; or take a smaller model"
            )
        what = f"{model} fits in no zone (a pipeline lies in one)"
        raise Infeasible(
            what, binding="instances in the largest zone", needed=least, available=max(most.values()), hint=hint
        )
    rides = {("all", name): ride_zones(job, name, have_T, usd_per_h=usd_per_h) for name in CHOOSES}
    for place, zone in enumerate(zones):
        only_T = [(have[place],) for have in have_T]
        here = zoned_job(model, [zone], only_T, step_s=OFTEN_S, links=Links())
        rides[zone, "liveput"] = ride_zones(here, "liveput", only_T, usd_per_h=usd_per_h)
    rows: list[dict[str, Any]] = [
        {
            "zones": where,
            "name": name,
            "samples": one.samples,
            "usd": one.usd,
            "samples_per_usd": one.samples_per_usd,
            "moves": one.moves,
            "suspended_s": one.suspended_s,
        }
        for (where, name), one in rides.items()
    ]
    names = ", ".join(market.name for market in markets)
    span_h = len(have_T) * OFTEN_S / 3600.0
    notes = [
        f"{len(zones)} zones, decided every {OFTEN_S / 60:g} minutes; only the instances of the grid are held",
        "a pipeline lies in one zone; between regions 1 Gb/s (assumed), USD 0.02 per GB, a new site boots for 45 s",
        "grids across zones whose gradients cost more than instances on demand are left out",
        "oracle knows the future",
    ]
    if small := [zone for zone in zones if most[zone] < least]:
        notes.append(f"{model} needs {least} instances in a zone, and there never were as many in {', '.join(small)}")
    if as_json:
        facts = {"schema_version": 1, "command": command_line(context), "traces": [m.name for m in markets]}
        print_document({**facts, "model": model, "zones": zones, "hours": span_h, "policies": rows, "notes": notes})
        return
    typer.echo(f"{model} on {names}, {span_h:,.1f} h\n")
    titles = ["zones", "policy", "samples", "USD", "samples/USD", "moves", "suspended"]
    table = [
        [
            row["zones"],
            row["name"],
            f"{row['samples']:,.0f}",
            f"{row['usd']:,.2f}",
            f"{row['samples_per_usd']:,.0f}",
            f"{row['moves']}",
            f"{row['suspended_s'] / 3600:,.1f} h",
        ]
        for row in rows
    ]
    print_table(titles, table, words=(0, 1))
    typer.echo()
    print_notes(notes)
