"""`sublet scale`: how many workers a job may have."""

from __future__ import annotations

from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.parse.values import parse_workers
from sublet.cli.print.tables import print_document
from sublet.cli.work.job_requests import post_to_job

__all__ = ["scale"]


def scale(
    job: opt.JobRef,
    workers: Annotated[str, typer.Option("--workers", metavar="A..B", help="4, or 2..8.")],
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Let a job have between A and B workers from now on."""
    low, high = parse_workers(workers)
    found = post_to_job(job, "scale", {"low": low, "high": high})
    if opt.wants_document(output, json):
        print_document(found)
        return
    typer.echo(f"job {found['id']} ({found['name']}) may have {low}..{high} workers, it has {found['workers']}")
