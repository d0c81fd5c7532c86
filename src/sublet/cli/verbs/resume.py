"""`sublet resume`: let a job go on."""

from __future__ import annotations

from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.jobs import print_job
from sublet.cli.work.job_requests import post_to_job

__all__ = ["resume"]


def resume(
    job: opt.JobRef,
    start_over: Annotated[
        bool, typer.Option("--start-over", help="Begin at step 0 if all its checkpoints are damaged.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Let a job go on that was paused, stopped at the limit of the budget, or is held."""
    print_job(post_to_job(job, "resume", {"start_over": start_over}), document=opt.wants_document(output, json))
