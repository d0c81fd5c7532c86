"""`sublet ps`, `cancel`, `pause`, `resume`, `scale`: the jobs of the controller."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_line, print_table

__all__ = ["cancel", "pause", "ps", "resume", "scale", "workers_from_text"]

WATCH_S = 1.0  # between two documents of `ps -w -o json`
LAST_ENDED = 10  # jobs that have ended and are still shown


def ps(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay and show what happens, until Ctrl-C.")] = False,
    every: Annotated[
        bool, typer.Option("--all", "-a", help=f"Not only the last {LAST_ENDED} that have ended.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Jobs: phase, workers, progress, loss, dollars, time left."""
    from sublet.api.client import connect

    client = connect()
    document = opt.wants_document(output, json)
    if watch and document:
        while True:  # until Ctrl-C
            print_line(client.get("/v1/jobs"))
            time.sleep(WATCH_S)
    if watch:
        from sublet.cli.print.screen import looker, watch_desk

        watch_desk(looker(client))
        return
    found = client.get("/v1/jobs")
    if document:
        print_document(found)
    else:
        _print_jobs(found["jobs"], every=every)


def cancel(
    job: opt.JobRef,
    now: Annotated[bool, typer.Option("--now", help="Without a last checkpoint.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """End a job, with a last checkpoint; those that it wrote stay. A failed one: for good, its secrets are deleted."""
    _tell(_asked(job, "cancel", {"now": now}), document=opt.wants_document(output, json))


def pause(job: opt.JobRef, output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Save a job and take its workers away: it costs nothing until 'resume'."""
    _tell(_asked(job, "pause", {}), document=opt.wants_document(output, json))


def resume(
    job: opt.JobRef,
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Begin at step 0 if all its checkpoints are damaged.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Let a job go on that was paused, stopped at the limit of the budget, or is held."""
    _tell(_asked(job, "resume", {"start_over": start_over}), document=opt.wants_document(output, json))


def scale(
    job: opt.JobRef,
    workers: Annotated[str, typer.Option("--workers", metavar="A..B", help="4, or 2..8.")],
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Let a job have between A and B workers from now on."""
    low, high = workers_from_text(workers)
    found = _asked(job, "scale", {"low": low, "high": high})
    if opt.wants_document(output, json):
        print_document(found)
        return
    typer.echo(f"job {found['id']} ({found['name']}) may have {low}..{high} workers, it has {found['workers']}")


def workers_from_text(text: str) -> tuple[int, int]:
    """`4` or `2..8`."""
    from sublet.runtime.jobs.values import parse_field, parse_range

    return parse_field("--workers", text, parse_range)


def _asked(job: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    from sublet.api.client import connect, segment

    return connect().post(f"/v1/jobs/{segment(job)}/{verb}", body)


def _tell(found: dict[str, Any], *, document: bool) -> None:
    from sublet.cli.print.figures import verdict

    if document:
        print_document(found)
    else:
        typer.echo(verdict(found))


def _print_jobs(jobs: list[dict[str, Any]], *, every: bool) -> None:
    from sublet.cli.print.figures import loss, percent, phase_of, span
    from sublet.runtime.controller_api.views import ENDED

    hidden = [] if every else [job["id"] for job in jobs if job["phase"] in ENDED][:-LAST_ENDED]
    shown = [job for job in jobs if job["id"] not in hidden]
    if not shown:
        typer.echo("no jobs\nnext: sublet submit FILE")
        return
    titles = ["job", "name", "phase", "workers", "progress", "loss", "USD", "USD/h", "left"]
    rows = [
        [
            job["id"],
            job["name"],
            phase_of(job),
            f"{job['workers']} of {job['min_workers']}..{job['max_workers']}",
            percent(job["progress"]),
            loss(job["loss"]),
            f"{job['usd_total']:.2f}",
            f"{job['usd_per_h']:.2f}",
            span(job["eta_s"]["p50"] if job["eta_s"] else None),
        ]
        for job in shown
    ]
    print_table(titles, rows, words=(0, 1, 2))
    for job in shown:
        for warning in job["warnings"]:
            typer.echo(f"! {job['id']} {warning}")
    if hidden:
        typer.echo(f"{len(hidden)} more have ended; --all shows them")
