"""From a specification to a job of the controller, or to what would become of it: what `submit` and `run` share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sublet.cli.print.log import follow_log
from sublet.cli.print.submission import print_dry_run, print_submitted
from sublet.cli.print.tables import print_document, print_line, print_notes

if TYPE_CHECKING:
    from sublet.runtime.jobs.spec import JobSpec

__all__ = ["submit_spec"]

INFEASIBLE = 112
PACK_S = 60.0  # for an answer: the controller may have to pack a large directory first


def submit_spec(spec: JobSpec, *, dry_run: bool, follow: bool, as_json: bool) -> None:
    """Hand it in, or ask what would happen; with `follow`, end with the exit code of the job."""
    from sublet.api.client import connect
    from sublet.api.sending import check_files, send_files
    from sublet.runtime.anchor.troubles import is_anchor
    from sublet.runtime.jobs.serialize import spec_to_json
    from sublet.runtime.settings import default_state_dir

    client = connect()
    away = client.remote or is_anchor(default_state_dir())  # who is logged in on an anchor brings files as others do
    if dry_run:
        asked = check_files(spec, default_state_dir()) if away else spec
        body = {"job": spec_to_json(asked, secrets=True)}
        found = client.post("/v1/dry-run", body)
        if as_json:
            print_document(found)
        else:
            print_dry_run(found, spec)
            if not away and found["feasible"]:
                print_notes(_of_an_anchor(found["usd_per_h"], default_state_dir()))
        if not found["feasible"]:
            raise typer.Exit(INFEASIBLE)
        return
    sent = {}
    if away:
        spec, sent["files_sent_bytes"] = send_files(client, spec, default_state_dir())
    body = {"job": spec_to_json(spec, secrets=True)}
    found = replace(client, timeout_s=PACK_S).post("/v1/jobs", body) | sent
    job_id = found["job_id"]
    if as_json:
        (print_line if follow else print_document)(found)
    else:
        print_submitted(found, spec)
    if follow:
        raise typer.Exit(follow_log(client, job_id, rank=0, lines=as_json))


def _of_an_anchor(usd_per_h: float, state_dir: Path) -> list[str]:
    """Whether the controller should live elsewhere, where it could."""
    from sublet.errors import SubletError
    from sublet.runtime.anchor.worth import loss_usd, pays_every_h
    from sublet.runtime.providers.aws.config import config_path, read_config

    try:
        config = read_config(config_path(state_dir))
    except SubletError:  # nothing of AWS is set up, or not as it should be: another command says so
        return []
    rent = config.anchor_usd_per_h
    hours = pays_every_h(usd_per_h, lease_s=config.lease_s, anchor_usd_per_h=rent)
    lost = loss_usd(usd_per_h, config.lease_s)
    told = (
        f"if this machine is closed while it trains, its nodes cost USD {lost:.2f} more and end: an anchor "
        f"(sublet move --to aws, USD {rent:g}/h) pays if that happens more often than every {hours:.1f} h"
    )
    return [told]
