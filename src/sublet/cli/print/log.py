"""Output of a job, as it is or as a document per line, once or until the job ends."""

from __future__ import annotations

import sys
from json import loads
from typing import TYPE_CHECKING

import typer

from sublet.cli.print.figures import exit_code_of, verdict
from sublet.cli.print.tables import Output, form, print_line

if TYPE_CHECKING:
    from sublet.api.client import Client


def follow_log(client: Client, job: str, **query: str | int | bool | None) -> int:
    """Show output until the job ends; its exit code."""
    from sublet.api.client import segment

    try:
        print_log(client, job, follow=True, **query)
    except KeyboardInterrupt:
        typer.echo(f"\njob {job} goes on\nnext: sublet logs {job} -f | sublet cancel {job}", err=True)
        raise
    found = client.get(f"/v1/jobs/{segment(job)}")
    typer.echo(verdict(found), err=True)
    return exit_code_of(found)


def print_log(client: Client, job: str, **query: str | int | bool | None) -> int:
    """The bytes as they are, where standard output takes bytes; how many. In YAML each line is a document."""
    from sublet.api.client import segment

    binary = getattr(sys.stdout, "buffer", None)
    size, rest, in_yaml = 0, b"", query.get("lines") and form.get() is Output.YAML
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
