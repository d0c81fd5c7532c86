"""`sublet ps`: the jobs of the controller."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_line

__all__ = ["ps"]


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
        from sublet.cli.print.screen import watch_controller
        from sublet.cli.status import status_reader

        watch_controller(status_reader(client))
        return
    found = client.get("/v1/jobs")
    if document:
        print_document(found)
    else:
        from sublet.cli.print.jobs import print_jobs

        shelved = int(client.get("/v1/health")["earlier_jobs"]) if every else 0
        print_jobs(found["jobs"], last_ended=None if every else LAST_ENDED, shelved=shelved)
