"""`sublet logs`: what a job prints."""

from __future__ import annotations

import sys
from json import loads
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import form, print_line

if TYPE_CHECKING:
    from sublet.api.client import Client

__all__ = ["follow_log", "logs"]


def logs(
    job: opt.JobRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[
        int | None, typer.Option(metavar="N", help="Of whoever is rank N, one worker after the other. [default: 0]")
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
    if not _print(client, job, rank=rank, worker=worker, every=every, tail=tail, lines=lines):
        whose = f"worker {worker}" if worker else "the job" if every else f"rank {rank or 0}"
        typer.echo(f"{whose} has printed nothing", err=True)


def follow_log(client: Client, job: str, **query: str | int | bool | None) -> int:
    """Show output until the job ends; its exit code."""
    from sublet.api.client import segment
    from sublet.cli.print.figures import exit_code_of, verdict

    try:
        _print(client, job, follow=True, **query)
    except KeyboardInterrupt:
        typer.echo(f"\njob {job} goes on\nnext: sublet logs {job} -f | sublet cancel {job}", err=True)
        raise
    found = client.get(f"/v1/jobs/{segment(job)}")
    typer.echo(verdict(found), err=True)
    return exit_code_of(found)


def _print(client: Client, job: str, **query: str | int | bool | None) -> int:
    """The bytes as they are, where standard output takes bytes; how many. In YAML each line is a document."""
    from sublet.api.client import segment

    binary = getattr(sys.stdout, "buffer", None)
    size, rest, in_yaml = 0, b"", query.get("lines") and form.get() is opt.Output.YAML
    for chunk in client.stream(f"/v1/jobs/{segment(job)}/log", **query):
        if in_yaml:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in filter(None, whole):
                print_line(loads(line))
        elif binary is None:
            sys.stdout.write(chunk.decode("utf-8", errors="replace"))
        else:
            sys.stdout.flush()
            binary.write(chunk)
            binary.flush()
        size += len(chunk)
    return size
