"""`sublet cancel`: end a job."""

from __future__ import annotations

from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.jobs import print_job
from sublet.cli.work.job_requests import post_to_job

__all__ = ["cancel"]


def cancel(
    job: opt.JobRef,
    now: Annotated[bool, typer.Option("--now", help="Without a last checkpoint.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """End a job, with a last checkpoint; those that it wrote stay. A failed one: for good, its secrets are deleted."""
    print_job(post_to_job(job, "cancel", {"now": now}), document=opt.wants_document(output, json))
