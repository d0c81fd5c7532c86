"""`sublet resume`: let a job go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

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
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME[=VALUE]",
            help="A secret of the job, anew, as after a restore; without a value, as in your environment.",
        ),
    ] = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Let a job go on that was paused, stopped at the limit of the budget, or is held."""
    body: dict[str, Any] = {"start_over": start_over}
    if secret:  # of a controller that does not know the word, none is asked for it
        body["secrets"] = dict(_named(text) for text in secret)
    print_job(post_to_job(job, "resume", body), document=opt.wants_document(output, json))


def _named(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    from sublet.errors import InvalidValue

    name, given, value = text.partition("=")
    if not given and name not in environment:
        raise InvalidValue("--secret", name, "NAME=VALUE, or the name of a variable that is set in your environment")
    return name, value if given else environment[name]
