"""`sublet logs`: what a job prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sublet.cli import options as opt

if TYPE_CHECKING:
    from sublet.api.client import Client

__all__ = ["follow_log", "logs"]


def logs(
    job: opt.JobRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[int, typer.Option(metavar="N", help="Of this worker.")] = 0,
    tail: Annotated[int | None, typer.Option(metavar="N", help="Only the last N lines.")] = None,
) -> None:
    """Output of a job; with -f, the exit code is that of the job (0, 100 failed, 103 cancelled, 110 out of budget)."""
    from sublet.api.client import connect, segment
    from sublet.domain.quantity import whole

    whole("--rank", rank)
    if tail is not None:
        whole("--tail", tail)
    client = connect()
    if follow:
        raise typer.Exit(follow_log(client, job, rank=rank, tail=tail))
    if not _print(client, f"/v1/jobs/{segment(job)}/log", rank=rank, tail=tail):
        typer.echo(f"rank {rank} has printed nothing", err=True)


def follow_log(client: Client, job: str, *, rank: int, tail: int | None = None) -> int:
    """Show output until the job ends; its exit code."""
    from sublet.api.client import segment
    from sublet.cli.desk_words import exit_code_of

    try:
        _print(client, f"/v1/jobs/{segment(job)}/log", rank=rank, tail=tail, follow=True)
    except KeyboardInterrupt:
        typer.echo(f"\njob {job} goes on\nnext: sublet logs {job} -f | sublet cancel {job}", err=True)
        raise
    found = client.get(f"/v1/jobs/{segment(job)}")
    reason = f": {found['reason']}" if found["reason"] else ""
    typer.echo(f"job {found['id']} ({found['name']}) is {found['phase']}{reason}", err=True)
    return exit_code_of(found)


def _print(client: Client, path: str, **query: int | bool | None) -> int:
    """The bytes as they are, where standard output takes bytes; how many."""
    binary = getattr(sys.stdout, "buffer", None)
    size = 0
    for chunk in client.stream(path, **query):
        if binary is None:
            sys.stdout.write(chunk.decode("utf-8", errors="replace"))
        else:
            sys.stdout.flush()
            binary.write(chunk)
            binary.flush()
        size += len(chunk)
    return size
