"""From a specification to a job of the controller, or to what would become of it: what `submit` and `run` share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from sublet.cli.print.log import follow_log
from sublet.cli.print.submission import print_dry_run, print_submitted
from sublet.cli.print.tables import print_document, print_line

if TYPE_CHECKING:
    from sublet.runtime.jobs.spec import JobSpec

__all__ = ["submit_spec"]

INFEASIBLE = 112
PACK_S = 60.0  # for an answer: the controller may have to pack a large directory first


def submit_spec(spec: JobSpec, *, dry_run: bool, follow: bool, as_json: bool) -> None:
    """Hand it in, or ask what would happen; with `follow`, end with the exit code of the job."""
    from sublet.api.client import connect
    from sublet.runtime.jobs.serialize import spec_to_json

    client = connect()
    body = {"job": spec_to_json(spec, secrets=True)}
    if dry_run:
        found = client.post("/v1/dry-run", body)
        if as_json:
            print_document(found)
        else:
            print_dry_run(found, spec)
        if not found["feasible"]:
            raise typer.Exit(INFEASIBLE)
        return
    found = replace(client, timeout_s=PACK_S).post("/v1/jobs", body)
    job_id = found["job_id"]
    if as_json:
        (print_line if follow else print_document)(found)
    else:
        print_submitted(found, spec)
    if follow:
        raise typer.Exit(follow_log(client, job_id, rank=0, lines=as_json))
