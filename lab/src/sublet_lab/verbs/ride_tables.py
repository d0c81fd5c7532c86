"""How `sublet spot` answers: a table of policies or of zones with its notes, or a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.tables import print_document, print_notes, print_table
from sublet.domain.units import SECONDS_PER_H

if TYPE_CHECKING:
    from sublet.market.spot import SpotTrace
    from sublet_lab.rides.deadline import Punctual
    from sublet_lab.rides.many_zones import ZoneRuns
    from sublet_lab.rides.report import SpotRuns
    from sublet_lab.rides.ride import RideResult

MEASURED_ON = "V100"
BOUNDS = frozenset({"oracle", "ideal", "parcae-truth"})


def print_runs(found: SpotRuns, notes: Sequence[str]) -> None:
    """A row per policy."""
    from sublet_lab.rides.report import rows_from_runs

    typer.echo(f"{found.job.name} on {found.trace}, {found.span_s / SECONDS_PER_H:,.1f} h\n")
    print_table(*rows_from_runs(found), words=(0,))
    typer.echo()
    print_notes(notes)


def notes_on_runs(
    found: SpotRuns, market: SpotTrace, *, usd_per_h: float, notice_s: float, zone: str | None, most: int
) -> list[str]:
    """Basis of the figures."""
    from sublet.perf.parcae import least_usd_per_sample

    job = found.job
    where = f"zone {zone}" if zone else f"{len(market.zones)} zones together" if len(market.zones) > 1 else "one zone"
    least = f"a sample costs USD {least_usd_per_sample(job, usd_per_h):.3g} at the least"
    paid = f"every instance that is to be had is held at USD {usd_per_h:g} per hour, but none while suspended"
    if found.usd_per_sample is not None and "liveput" in found.runs:
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
    if BOUNDS & set(found.runs):
        notes.append("bounds in samples: oracle and parcae-truth know the future, and for ideal migrations are free")
    if {"oracle", "parcae-truth"} & set(found.runs) and _most_recorded(market, len(found.capacity)) > most:
        notes.append(f"of the future they know up to {most} instances: losses above that hit them unforeseen")
    if notice_s:
        notes.append(
            f"losses are announced {notice_s:g} s ahead, and jobs prepare for them; bounds and bamboo have no notice"
        )
    return notes


def _most_recorded(market: SpotTrace, minutes: int) -> int:
    from sublet_lab.rides.record import record_of

    return max(moment.now for moment in record_of(market, ticks=minutes).moments())


def note_on_deadline(name: str, policy: Punctual, run: RideResult) -> str:
    """Whether it was kept, and what on demand had to do with it."""
    ended = "on time" if run.samples >= policy.samples else f"only {run.samples / policy.samples:.1%} done: too late"
    return (
        f"{name}: {policy.samples:,.0f} samples within {policy.within_s / SECONDS_PER_H:g} h, {ended}, with"
        f" {run.on_demand_h:,.1f} instance-hours on demand at USD {policy.on_demand_usd_per_h:g}"
    )


def json_from_runs(command: str, found: SpotRuns, usd_per_h: float, notes: list[str]) -> dict[str, Any]:
    """All of it."""
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
                "samples": run.samples,
                "usd": run.usd,
                "samples_per_usd": run.samples_per_usd,
                "migrations": run.changes,
                "suspended_s": run.suspended_s,
                "on_demand_h": run.on_demand_h,
                "net_usd": found.net_usd(run),
            }
            for name, run in {**found.runs, **found.frontier}.items()
        ],
        "notes": notes,
    }


def print_zone_runs(found: ZoneRuns, traces: Sequence[str], *, command: str, every_s: float, document: bool) -> None:
    """A row for every way to choose in all zones, and for liveput in each alone."""
    rows: list[dict[str, Any]] = [
        {
            "zones": where,
            "name": name,
            "samples": run.samples,
            "usd": run.usd,
            "samples_per_usd": run.samples_per_usd,
            "moves": run.moves,
            "suspended_s": run.suspended_s,
        }
        for (where, name), run in found.runs.items()
    ]
    notes = _notes_on_zones(found, every_s)
    if document:
        facts = {"schema_version": 1, "command": command, "traces": list(traces), "model": found.model}
        facts |= {"zones": found.zones, "hours": found.span_h, "policies": rows, "notes": notes}
        print_document(facts)
        return
    typer.echo(f"{found.model} on {', '.join(traces)}, {found.span_h:,.1f} h\n")
    titles = ["zones", "policy", "samples", "USD", "samples/USD", "moves", "suspended"]
    table = [
        [
            row["zones"],
            row["name"],
            f"{row['samples']:,.0f}",
            f"{row['usd']:,.2f}",
            f"{row['samples_per_usd']:,.0f}",
            f"{row['moves']}",
            f"{row['suspended_s'] / SECONDS_PER_H:,.1f} h",
        ]
        for row in rows
    ]
    print_table(titles, table, words=(0, 1))
    typer.echo()
    print_notes(notes)


def _notes_on_zones(found: ZoneRuns, every_s: float) -> list[str]:
    notes = [
        f"{len(found.zones)} zones, decided every {every_s / 60:g} minutes; only the instances of the grid are held",
        "a pipeline lies in one zone; between regions 1 Gb/s (assumed), USD 0.02 per GB, a new site boots for 45 s",
        "grids across zones whose gradients cost more than instances on demand are left out",
        "oracle knows the future",
    ]
    if small := [zone for zone in found.zones if found.most[zone] < found.least]:
        needs = f"{found.model} needs {found.least} instances in a zone"
        notes.append(f"{needs}, and there never were as many in {', '.join(small)}")
    return notes
