"""`sublet down`: stop the controller, with all that it rented."""

from __future__ import annotations

from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document
from sublet.cli.work import controller_process, hosted

__all__ = ["down"]


def down(
    end_jobs: Annotated[
        bool, typer.Option("--end-jobs", help="Cancel the jobs too; otherwise 'up' resumes them.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Save and stop all jobs, give back everything that is rented, and stop the controller."""
    from sublet.api.state import StateDir
    from sublet.errors import NoController
    from sublet.runtime.controller_host.record import read_record
    from sublet.runtime.settings import default_state_dir

    state, document = StateDir(default_state_dir()), opt.wants_document(output, json)
    away = read_record(state.path) is not None
    if away:
        hosted.bring_back(state, end_jobs=end_jobs, quiet=document)
    try:
        state.address()
        ran = True
    except NoController:
        ran = away
    stopped = away or (ran and controller_process.stop(state, end_jobs=end_jobs))
    if away:
        text = f"stopped; nothing is rented, the controller host has ended, and its state is in {state.path}"
    elif not ran:
        text = f"no controller runs ({state.path})"
    elif stopped:
        text = "stopped; nothing is rented" + ("" if end_jobs else ", jobs go on at the next 'sublet up'")
    else:
        text = "it was gone already; what it rented ends with its lease, and 'sublet up' resumes the jobs"
    if document:
        facts = {"state_dir": str(state.path), "ran": ran, "stopped": stopped, "jobs_ended": stopped and end_jobs}
        print_document({"schema_version": 1, **facts, "told": text})
    else:
        typer.echo(text)
