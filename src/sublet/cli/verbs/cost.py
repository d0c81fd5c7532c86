"""`sublet cost`: the bill, by what the dollars bought."""

from __future__ import annotations

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import command_line, print_document

__all__ = ["cost"]


def cost(
    context: typer.Context,
    job: opt.MaybeJobRef = None,
    report: opt.Report = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Dollars of one job, or of all, by what they bought; and what on-demand would have cost."""
    from sublet.api.client import connect
    from sublet.cli.print.bill import print_bill

    client = connect()
    found = client.get("/v1/cost", job=job)
    if opt.wants_document(output, json):
        print_document(found)
    else:
        print_bill(found)
    if report is not None:
        from sublet.cli.print.report import write_live_report
        from sublet.cli.status import fetch_status

        page = write_live_report(client, fetch_status(client), folder=report, command=command_line(context))
        typer.echo(f"report: {page}", err=opt.wants_document(output, json))
