"""`sublet move`: the controller goes on elsewhere, with all that it knows."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document
from sublet.cli.work import controller_process, hosted

__all__ = ["move"]


def move(
    to: Annotated[str, typer.Option("--to", metavar="WHERE", help="aws: to a host there; local: back to here.")],
    anchor_type: opt.AnchorType = None,
    send_credentials: opt.SendCredentials = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Save and stop all jobs, take the controller's state to a controller host or back, and go on there.

    Two controllers never have one state: after a crash at any moment one of them may run, and the same command goes on.
    """
    from sublet.api.state import StateDir
    from sublet.cli.work.taking_along import refuse_to_strand, take_along
    from sublet.errors import BadInput, InvalidValue, NoController
    from sublet.runtime import last_run
    from sublet.runtime.controller_host.record import on_host, read_record
    from sublet.runtime.settings import default_state_dir

    if to not in ("aws", "local"):
        raise InvalidValue("--to", to, "aws or local")
    state, document = StateDir(default_state_dir()), opt.wants_document(output, json)
    if to == "local":
        if read_record(state.path) is None:
            raise BadInput(state.path, "it is here already: there is no controller host", hint="sublet up")
        hosted.bring_back(state, quiet=document)
        text = "the controller's state is here, and the controller host has ended; 'sublet up --provider NAME' goes on"
    else:
        before = hosted.started_with(state) if on_host(state.path) else last_run.last_settings(state.path)
        if before is None:
            raise BadInput(state.path, "no controller ever ran here", hint="sublet up, or sublet up --on aws")
        if read_record(state.path) is None:
            refuse_to_strand(state.path, before, "aws")  # before anything is stopped, or paid
            try:
                state.address()
                controller_process.stop(state)
            except NoController:
                pass
            before = last_run.last_settings(state.path) or before
            take_along(state.path, before, "aws", partial(typer.echo, err=document))
        record = hosted.raise_host(
            state, before, kind=anchor_type or "", send_credentials=send_credentials, quiet=document
        )
        text = f"the controller goes on at {record.instance} at {record.address}; all commands work through it"
    if document:
        print_document({"schema_version": 1, "state_dir": str(state.path), "to": to, "told": text})
    else:
        typer.echo(text)
