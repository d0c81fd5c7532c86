"""`sublet logs`: what a job prints."""

from __future__ import annotations

from typing import Annotated

import typer

from sublet.cli import options as opt

__all__ = ["logs"]


def logs(
    job: opt.JobRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[
        int | None, typer.Option(metavar="N", help="Of rank N, one worker after the other. [default: 0]")
    ] = None,
    worker: Annotated[str, typer.Option(metavar="ID", help="Of this worker process alone.")] = "",
    every: Annotated[bool, typer.Option("--all", "-a", help="Of every worker that the job ever had.")] = False,
    tail: Annotated[int | None, typer.Option(metavar="N", help="Only the last N lines.")] = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON per line: worker, node, rank, line.")] = False,
) -> None:
    """Output of a job: of rank 0, through all resizes and restarts, with a line where another worker takes over.

    With -f, the exit code is that of the job (0, 100 failed, 103 cancelled, 110 out of budget).
    """
    from sublet.api.client import connect
    from sublet.cli.print.log import follow_log, print_log
    from sublet.domain.quantity import whole
    from sublet.errors import InvalidValue

    if rank is not None:
        whole("--rank", rank)
    if tail is not None:
        whole("--tail", tail)
    if (rank is not None) + bool(worker) + every > 1:
        raise InvalidValue("--rank, --worker, --all", (rank, worker, every), "one of them: whose output to show")
    client, lines = connect(), opt.wants_document(output, json)
    if follow:
        raise typer.Exit(follow_log(client, job, rank=rank, worker=worker, every=every, tail=tail, lines=lines))
    if not print_log(client, job, rank=rank, worker=worker, every=every, tail=tail, lines=lines):
        whose = f"worker {worker}" if worker else "the job" if every else f"rank {rank or 0}"
        typer.echo(f"{whose} has printed nothing", err=True)
