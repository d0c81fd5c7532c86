"""`sublet events`: what happened, and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_line, print_table

__all__ = ["events"]


POLL_S = 0.5


def events(
    job: opt.MaybeJobRef = None,
    after: Annotated[int, typer.Option(metavar="N", help="Only those after number N.")] = 0,
    last: Annotated[int | None, typer.Option("--last", "-n", metavar="N", help="Only the last N.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """History of one job, or of everything: decisions with their reasons, prices, preemptions."""
    from sublet.client import connect
    from sublet.domain.quantity import whole

    whole("--after", after)
    if last is not None:
        whole("--last", last, 1)
    fleet = connect()
    found = fleet.events(job or "", after=after)
    found = found[-last:] if last else found
    document = opt.wants_document(output, json)
    if document and not follow:
        print_document({"schema_version": 1, "events": found})
        return
    if document:
        _print_lines(found)
    elif found or not follow:
        _print(found)
    while follow:
        time.sleep(POLL_S)
        after = max([after, *(event["seq"] for event in found)])
        found = fleet.events(job or "", after=after)
        if document:
            _print_lines(found)
            continue
        for event in found:
            typer.echo("  ".join(cell for cell in _row(event) if cell))


def _print_lines(found: Sequence[Mapping[str, Any]]) -> None:
    for event in found:
        print_line(event)


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        typer.echo("nothing has happened yet")
        return
    print_table(["no.", "at", "who", "USD/h", "USD", "what"], [_row(event) for event in found], words=(2, 5))


def _row(event: Mapping[str, Any]) -> list[str]:
    from sublet.cli.print.figures import span

    return [
        f"{event['seq']}",
        span(event["at_s"]),
        event["job_id"] or event["node_id"],
        f"{event['usd_per_h']:.2f}",
        f"{event['usd_total']:.2f}",
        event["text"],
    ]
