"""Report on a submitted job, or a dry run: its plan, its expected cost, and alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from sublet.cli.print.figures import money, quantiles, rate, span
from sublet.cli.print.tables import print_notes, print_table

if TYPE_CHECKING:
    from sublet.runtime.jobs.spec import JobSpec

EXTRAS = (("its time", "time_usd"), ("scarce", "scarce_usd"), ("other", "other_usd"))  # beside the rent


def print_submitted(found: Mapping[str, Any], spec: JobSpec) -> None:
    """Its id, how it is resized, what it will cost, and what to type next."""
    from sublet.runtime.jobs.command import python_lines

    job_id = found["job_id"]
    how = "resized without a restart" if spec.sdk else "an unmodified script, restarted to resize"
    typer.echo(f"job {job_id} ({found['name']}) is submitted: {_width(spec)}, {how}")
    for line in python_lines(spec):
        typer.echo(line)
    if (sent := found.get("files_sent_bytes")) is not None:
        typer.echo(f"sent for its files: {sent:,} bytes")
    if line := expected_line(found.get("expected")):
        typer.echo(line)
    print_notes(found.get("notes", spec.notes))  # the controller's too
    if found.get("warning"):
        typer.echo(f"warning: {found['warning']}")
    typer.echo(f"next: sublet logs {job_id} -f | sublet ps -w | sublet explain {job_id} | sublet cancel {job_id}")


def print_dry_run(found: Mapping[str, Any], spec: JobSpec) -> None:
    """The plan for it, and the alternatives."""
    from sublet.runtime.jobs.command import python_lines

    typer.echo(f"{found['name']}: {found['reason']}")
    if found["feasible"]:
        typer.echo(f"  plan       {found['shape'] or _width(spec)}, {money(found['usd_per_h'])}/h")
        typer.echo(f"  starts in  {span(found['starts_s'])}")
        typer.echo(f"  finish in  {quantiles(found['finish_s'], span)}")
        typer.echo(f"  cost       {quantiles(found['cost_usd'], money)}, on demand {money(found['usd_on_demand'])}")
    if line := expected_line(found.get("expected")):
        typer.echo(f"  {line}")
    for line in python_lines(spec):
        typer.echo(f"  {line}")
    print_alternatives(found["alternatives"])
    print_notes(found["notes"])
    typer.echo("nothing was submitted")


def expected_line(expected: dict[str, Any] | None) -> str:
    """Expected cost, and the cost of alternatives; "" where it is unknown."""
    if expected is None:
        return ""
    if expected["usd"] is None:  # how much work it is, is not known: rents say as much
        ours, quick = f"{money(expected['usd_per_h'])}/h", f"{money(expected['usd_per_h_in_a_hurry'])}/h"
        steady = None if expected["usd_per_h_on_demand"] is None else f"{money(expected['usd_per_h_on_demand'])}/h"
    else:
        ours = f"about {money(expected['usd'])} in {span(expected['seconds'])}"
        quick = f"{money(expected['usd_in_a_hurry'])} in {span(expected['seconds_in_a_hurry'])}"
        steady = None if expected["usd_on_demand"] is None else money(expected["usd_on_demand"])
    beside = f"on demand {steady}, " if steady else ""
    when = "expected once others make room" if expected["waits"] else "expected"
    return f"{when}: {ours} on {expected['shape']}; {beside}in a hurry {quick}"


def print_alternatives(rows: list[dict[str, Any]]) -> None:
    """The alternatives, the chosen one marked."""
    if not rows:
        return
    in_money = any(row["price_usd"] is not None for row in rows)
    extra = [title for title, key in EXTRAS if any(round(row[key] or 0.0, 4) for row in rows)]
    profiled = any(row["known"] for row in rows)
    titles = ["shape", *(["batch"] if profiled else []), "USD/h", "samples/s", "time left", "losses", "rent left"]
    titles += [*([*extra, "in all"] if in_money else []), *(["speed is"] if profiled else []), "why"]
    cells = [
        [
            ("> " if row["chosen"] else "  ") + row["shape"],
            *([str(row["batch"] or "its own")] if profiled else []),
            f"{row['usd_per_h']:.2f}",
            rate(row["samples_per_s"]),
            span(row["left_s"]),
            f"{row['losses']:.1f}",
            money(row["left_usd"]),
            *([money(row[key]) for title, key in EXTRAS if title in extra] if in_money else []),
            *([money(row["price_usd"])] if in_money else []),
            *([row["known"]] if profiled else []),
            row["why"],
        ]
        for row in rows
    ]
    print_table(titles, cells, words=(0, len(titles) - 1))


def _width(spec: JobSpec) -> str:
    if spec.min_workers == spec.max_workers:
        return f"{spec.max_workers} worker" + ("s" if spec.max_workers > 1 else "")
    return f"{spec.min_workers}..{spec.max_workers} workers"
