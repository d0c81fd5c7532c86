"""`sublet demo`: three real training jobs, a spot market that takes nodes away, a budget, and the bill."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document, print_notes, print_table
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import InvalidValue

if TYPE_CHECKING:
    from sublet.api.state import StateDir

__all__ = ["demo"]


Demonstration = Callable[[Callable[[str], None]], Any]  # it tells what it does, and gives what came of it
MOST_S = 240.0  # wall: something is wrong if it has not ended by then


def demo(
    context: typer.Context,
    report: opt.Report = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="A name from 'sublet policies'.", autocompletion=opt.complete_policy)
    ] = "price",
    hosts: Annotated[
        bool,
        typer.Option("--hosts", help="Instead: hosts that share nothing are lost. Needs sublet-lab and root."),
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Instead: a model in 3 parts or more, in copies, on nodes that go away.")
    ] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Watch three jobs train, shrink, survive, grow back and finish on a replayed spot market: a bit over a minute.

    Everything is real but the cloud: its nodes are processes on this machine, and an hour of it takes a minute.
    """
    if hosts or grid:
        if hosts and (grid or report is not None):
            raise InvalidValue("--hosts", "with --grid or --report", "given alone: it is a demonstration of its own")
        _show(context, _of_hosts() if hosts else _of_grids(), report=report, document=opt.wants_document(output, json))
        return
    from sublet import plugins
    from sublet.api.client import connect
    from sublet.api.state import StateDir
    from sublet.cli.print.bill import print_bill
    from sublet.cli.print.report import write_live_report
    from sublet.cli.print.screen import watch_controller
    from sublet.cli.status import status_reader
    from sublet.cli.work import controller_process
    from sublet.demo.scene import SPEEDUP, demo_jobs, demo_settings
    from sublet.runtime.jobs.spec import spec_to_json

    plugins.refuse_without("train", "torch", *plugins.SERVER)
    document = opt.wants_document(output, json)
    state_dir = Path(tempfile.mkdtemp(prefix="sublet-demo-"))
    jobs = demo_jobs()
    typer.echo(
        f"A cloud in a box: {len(jobs)} jobs, a recorded spot market, USD 5 at most; an hour takes "
        f"{SECONDS_PER_H / SPEEDUP:.0f} s.\n"
        "Each worker is a real process that trains; a pause stands for its GPU's time.",
        err=document,
    )
    finished = False
    try:
        controller_process.start(demo_settings(state_dir, policy=policy))
        client = connect(state_dir)
        for spec in jobs:
            client.post("/v1/jobs", {"job": spec_to_json(spec, secrets=True)})
        status = watch_controller(status_reader(client), until=lambda now: now.over, most_s=MOST_S, err=document)
        finished = status.over
        bill = client.get("/v1/cost")
        if document:
            facts = {"command": command_line(context), "finished": finished, "jobs": list(status.jobs), "cost": bill}
            print_document({"schema_version": 1, **facts})
        else:
            print_bill(bill)
        if report is not None:
            page = write_live_report(client, status, folder=report, command=command_line(context))
            typer.echo(f"report: {page}", err=document)
    finally:
        _end(StateDir(state_dir), keep=not finished, err=document)
    if any(job["phase"] != "finished" for job in status.jobs):
        raise typer.Exit(1)


def _of_hosts() -> Demonstration:
    from sublet import plugins

    return cast(Demonstration, plugins.load_from_lab("sublet.demos", "hosts", "demo --hosts"))


def _of_grids() -> Demonstration:
    from sublet import plugins
    from sublet.demo.grid.demo import run

    plugins.refuse_without("train", "torch")
    return run


def _show(context: typer.Context, run: Demonstration, *, report: Path | None, document: bool) -> None:
    """About two minutes."""
    from sublet.sim.report.folder import prepare_folder, write_all

    if report is not None:
        prepare_folder(report)
    began_s = time.monotonic()

    def tell(what: str) -> None:
        typer.echo(f"{time.monotonic() - began_s:6.1f} s  {what}", err=True)

    done = run(tell)
    if document:
        print_document({"schema_version": 1, "command": command_line(context), **done.facts})
    else:
        for line in done.lines:
            typer.echo(line)
        print_table(["what", "figure"], done.rows, words=(0, 1))
        print_notes(done.notes)
    if report is not None:
        write_all(report, done.files)
        typer.echo(f"report: {report / 'report.html'}", err=document)
    if not done.ok:
        raise typer.Exit(1)


def _end(state: StateDir, *, keep: bool, err: bool) -> None:
    """Leave nothing running; what was interrupted can be taken up again."""
    from sublet.cli.work import controller_process
    from sublet.errors import NoController

    try:
        controller_process.stop(state)
        typer.echo("stopped; nothing is left running", err=err)
    except NoController:
        pass  # it never came up
    if keep:
        typer.echo(f"the jobs can go on: SUBLET_STATE={state.path} sublet up", err=True)
    else:
        shutil.rmtree(state.path, ignore_errors=True)
