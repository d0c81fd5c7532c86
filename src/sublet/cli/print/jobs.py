"""How jobs of the controller read: a row for each, or one job in a sentence."""

from __future__ import annotations

from typing import Any

import typer

from sublet.cli.print.figures import loss, percent, phase_of, span, verdict
from sublet.cli.print.tables import print_document, print_table


def print_job(job: dict[str, Any], *, document: bool) -> None:
    """The state of a job."""
    if document:
        print_document(job)
    else:
        typer.echo(verdict(job))


def progress_of(job: dict[str, Any]) -> str:
    """Its share; of a script that does not say, the hours of one worker that it has had and is expected to need."""
    if job["size_h"] is None:
        return percent(job["progress"])
    return f"{job['had_h']:.2g} of ~{job['size_h']:.2g} h"


def saved_of(job: dict[str, Any]) -> str:
    """The step of its newest checkpoint, and the tier that it lies in: `disk` goes with the node."""
    step = job["checkpoint_newest"]
    return " ".join(["" if step is None else f"{step}", job["checkpoint_tier"]]).strip() or "-"


def grid_of(job: dict[str, Any]) -> str:
    """Copies x parts of a model that is cut, and the spares beside them."""
    spares = f" + {job['spares']} spare" if job["spares"] else ""
    return f"{job['grid']}{spares}" if job["grid"] else "-"


def print_jobs(jobs: list[dict[str, Any]], *, last_ended: int | None, shelved: int = 0) -> None:
    """A table; of those that have ended, the last so many. `shelved` ended before all of them, and are not listed."""
    from sublet.runtime.controller_api.views import ENDED

    ended = [job["id"] for job in jobs if job["phase"] in ENDED]
    hidden = [] if last_ended is None else ended[:-last_ended]
    shown = [job for job in jobs if job["id"] not in hidden]
    if not shown:
        typer.echo("no jobs\nnext: sublet submit FILE")
        return
    saves = any(saved_of(job) != "-" for job in shown)  # else the column is room for nothing
    cut = any(job["grid"] for job in shown)
    owned = any(job["user"] for job in shown)
    titles = [
        "job",
        "name",
        *["user", "team"] * owned,
        "phase",
        "workers",
        *["grid"] * cut,
        "progress",
        "loss",
        *["saved"] * saves,
        "USD",
        "USD/h",
        "left",
    ]
    rows = [
        [
            job["id"],
            job["name"],
            *[job["user"] or "-", job["team"] or "-"] * owned,
            phase_of(job),
            f"{job['workers']} of {job['min_workers']}..{job['max_workers']}",
            *[grid_of(job)] * cut,
            progress_of(job),
            loss(job["loss"]),
            *[saved_of(job)] * saves,
            f"{job['usd_total']:.2f}",
            f"{job['usd_per_h']:.2f}",
            span(job["eta_s"]["p50"] if job["eta_s"] else None),
        ]
        for job in shown
    ]
    print_table(titles, rows, words=(0, 1, 2, 3, 4) if owned else (0, 1, 2))
    for job in shown:
        for warning in job["warnings"]:
            typer.echo(f"! {job['id']} {warning}")
    if hidden:
        typer.echo(f"{len(hidden)} more have ended; --all shows them")
    if shelved:
        earlier = "1 earlier job is" if shelved == 1 else f"{shelved} earlier jobs are"
        typer.echo(f"{earlier} on the shelf in log.sqlite; 'sublet cost' sums them up, 'sublet events ID' tells of one")
