"""`sublet explain`: why a job has what it has."""

from __future__ import annotations

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_notes

__all__ = ["explain"]


def explain(job: opt.JobRef, output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Why this worker count, on which prices, and what the alternatives would cost."""
    from sublet.api.client import connect, segment
    from sublet.cli.print.figures import money, span
    from sublet.cli.print.submission import print_alternatives

    found = connect().get(f"/v1/jobs/{segment(job)}/explain")
    if opt.wants_document(output, json):
        print_document(found)
        return
    by = f"by {found['policy']} at {span(found['at_s'])}"
    typer.echo(f"job {found['job_id']} has {found['shape'] or 'nothing'}, {by}")
    typer.echo(f"  {found['reason']}")
    if found["value_of_time_usd_per_h"] is not None:
        typer.echo(f"  an hour of its time is worth {money(found['value_of_time_usd_per_h'])}")
    for pool, usd in found["congestion_usd_per_gpu_h"].items():
        typer.echo(f"  {pool} is scarce: {money(usd)} per worker and hour beside the rent")
    typer.echo()
    print_alternatives(found["alternatives"])
    print_notes(found["notes"])
