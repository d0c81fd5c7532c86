"""`sublet submit` and `sublet run`: a job file, or just a command, becomes a job."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_line, print_notes, print_table

if TYPE_CHECKING:
    from sublet.runtime.jobs.spec import JobSpec

__all__ = ["expected_line", "run_job", "submit"]

INFEASIBLE = 112
EXTRAS = (("its time", "time_usd"), ("scarce", "scarce_usd"), ("other", "other_usd"))  # beside the rent
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show plan, price, expected finish and cost; submit nothing.")]


def submit(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A job file; - reads standard input.")] = None,
    file_option: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE", help="The same.")] = None,
    hurry: opt.Hurry = False,
    dry_run: DryRun = False,
    follow: Annotated[bool, typer.Option("--follow", help="Then show its output until it ends.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Submit a job file."""
    from sublet.errors import InvalidValue
    from sublet.runtime.jobs.file import job_from_file, job_from_text

    path = file or file_option
    if path is None or (file and file_option):
        raise InvalidValue("FILE", None if path is None else f"{file}, {file_option}", "one job file")
    if str(path) == "-":
        spec = job_from_text(sys.stdin.read(), source="standard input", base=Path.cwd())
    else:
        spec = job_from_file(path)
    spec = replace(spec, hurry=spec.hurry or hurry)
    _hand_in(spec, dry_run=dry_run, follow=follow, as_json=opt.wants_document(output, json))


def run_job(  # noqa: PLR0913 - one argument per option
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command of every worker.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Without it: from the command.")] = "",
    workers: Annotated[str, typer.Option(metavar="A..B", help="How many workers.")] = "1",
    spot: Annotated[str, typer.Option(metavar="MARKET", help="auto, spot or on-demand.")] = "auto",
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable; may be repeated.")] = None,
    purse: opt.Purse = None,
    hurry: opt.Hurry = False,
    sdk: Annotated[
        bool | None, typer.Option("--sdk/--no-sdk", help="Whether the script uses sublet.train; without it: look.")
    ] = None,
    dry_run: DryRun = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for its end.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Submit a command as a job, and show its output until it ends (Ctrl-C leaves it running)."""
    from sublet.cli.parse import money_from_text
    from sublet.cli.verbs.jobs import workers_from_text
    from sublet.runtime.jobs.file import job_from_command

    spec = job_from_command(
        command,
        name=name,
        workers=workers_from_text(workers),
        env=dict(_variable(text) for text in env or ()),
        market=spot,
        sdk=sdk,
        purse_usd=None if purse is None else money_from_text("--purse", purse).usd,
    )
    spec = replace(spec, hurry=hurry)
    as_json = opt.wants_document(output, json)
    _hand_in(spec, dry_run=dry_run, follow=not detach and not as_json, as_json=as_json)


def _variable(text: str) -> tuple[str, str]:
    from sublet.errors import InvalidValue

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidValue("--env", name, "NAME=VALUE")
    return name, value


def _hand_in(spec: JobSpec, *, dry_run: bool, follow: bool, as_json: bool) -> None:
    from sublet.api.client import connect
    from sublet.cli.verbs.logs import follow_log
    from sublet.runtime.jobs.serialize import spec_to_json

    client = connect()
    body = {"job": spec_to_json(spec, secrets=True)}
    if dry_run:
        found = client.post("/v1/dry-run", body)
        if as_json:
            print_document(found)
        else:
            _print_plan(found, spec)
        if not found["feasible"]:
            raise typer.Exit(INFEASIBLE)
        return
    found = client.post("/v1/jobs", body)
    job_id = found["job_id"]
    if as_json:
        (print_line if follow else print_document)(found)
    else:
        how = "resized without a restart" if spec.sdk else "an unmodified script, restarted to resize"
        typer.echo(f"job {job_id} ({found['name']}) is submitted: {_width(spec)}, {how}")
        if line := expected_line(found.get("expected")):
            typer.echo(line)
        if found.get("warning"):
            typer.echo(f"warning: {found['warning']}")
        typer.echo(f"next: sublet logs {job_id} -f | sublet ps -w | sublet explain {job_id} | sublet cancel {job_id}")
    if follow:
        raise typer.Exit(follow_log(client, job_id, rank=0, lines=as_json))


def expected_line(expected: dict[str, Any] | None) -> str:
    """What it is expected to cost, and what else it could have cost; "" where nobody can tell."""
    from sublet.cli.print.figures import money, span

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
    return f"expected: {ours} on {expected['shape']}; {beside}in a hurry {quick}"


def _width(spec: JobSpec) -> str:
    if spec.min_workers == spec.max_workers:
        return f"{spec.max_workers} worker" + ("s" if spec.max_workers > 1 else "")
    return f"{spec.min_workers}..{spec.max_workers} workers"


def _print_plan(found: dict[str, Any], spec: JobSpec) -> None:
    from sublet.cli.print.figures import money, quantiles, span

    typer.echo(f"{found['name']}: {found['reason']}")
    if found["feasible"]:
        typer.echo(f"  plan       {found['shape'] or _width(spec)}, {money(found['usd_per_h'])}/h")
        typer.echo(f"  starts in  {span(found['starts_s'])}")
        typer.echo(f"  finish in  {quantiles(found['finish_s'], span)}")
        typer.echo(f"  cost       {quantiles(found['cost_usd'], money)}, on demand {money(found['usd_on_demand'])}")
    if line := expected_line(found.get("expected")):
        typer.echo(f"  {line}")
    print_alternatives(found["alternatives"])
    print_notes(found["notes"])
    typer.echo("nothing was submitted")


def print_alternatives(rows: list[dict[str, Any]]) -> None:
    """What was weighed, the chosen one marked."""
    from sublet.cli.print.figures import money, rate, span

    if not rows:
        return
    in_money = any(row["price_usd"] is not None for row in rows)
    extra = [title for title, key in EXTRAS if any(round(row[key] or 0.0, 4) for row in rows)]
    titles = ["shape", "USD/h", "samples/s", "time left", "rent left", *([*extra, "in all"] if in_money else []), "why"]
    cells = [
        [
            ("> " if row["chosen"] else "  ") + row["shape"],
            f"{row['usd_per_h']:.2f}",
            rate(row["samples_per_s"]),
            span(row["left_s"]),
            money(row["left_usd"]),
            *([money(row[key]) for title, key in EXTRAS if title in extra] if in_money else []),
            *([money(row["price_usd"])] if in_money else []),
            row["why"],
        ]
        for row in rows
    ]
    print_table(titles, cells, words=(0, len(titles) - 1))
