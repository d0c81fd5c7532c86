"""`sublet pause`: save a job and take its workers away."""

from __future__ import annotations

from sublet.cli import options as opt
from sublet.cli.print.jobs import print_job
from sublet.cli.work.job_requests import post_to_job

__all__ = ["pause"]


def pause(job: opt.JobRef, output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Save a job and take its workers away: it costs nothing until 'resume'."""
    print_job(post_to_job(job, "pause", {}), document=opt.wants_document(output, json))
