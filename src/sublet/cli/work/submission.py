"""From a specification to a job of the controller, or to what would become of it: what `submit` and `run` share.

Break-even of a controller host: its price by the hour against the losses when a laptop with a controller goes away. A
controller that is gone renews no lease: its nodes run on for a lease, are paid for, and then end. Training in that time
that is not saved is lost as well. Its amount is unknown beforehand, and it is left out: the controller host pays
sooner.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sublet.cli.print.log import follow_log
from sublet.cli.print.submission import print_dry_run, print_submitted
from sublet.cli.print.tables import print_document, print_line, print_notes
from sublet.domain.units import SECONDS_PER_H


def loss_usd(usd_per_h: float, lease_s: float) -> float:
    """The least cost of nodes of this price after their controller has gone."""
    return usd_per_h * lease_s / SECONDS_PER_H


def pays_every_h(usd_per_h: float, *, lease_s: float, anchor_usd_per_h: float) -> float:
    """Hours between two such losses at which both ways cost the same: with more the controller host is cheaper."""
    return loss_usd(usd_per_h, lease_s) / anchor_usd_per_h if anchor_usd_per_h else float("inf")


if TYPE_CHECKING:
    from sublet.runtime.jobs.spec import JobSpec


INFEASIBLE = 112


def submit_spec(spec: JobSpec, *, dry_run: bool, follow: bool, as_json: bool) -> None:
    """Hand it in, or ask what would happen; with `follow`, end with the exit code of the job."""
    from sublet.client import connect
    from sublet.runtime.jobs.command import with_python
    from sublet.runtime.settings import default_state_dir

    fleet = connect()
    spec = spec if fleet.away else with_python(spec)  # as it is submitted, and told
    if dry_run:
        tried = fleet.dry_run(spec)
        if as_json:
            print_document(tried)
        else:
            print_dry_run(tried, spec)
            if not fleet.away and tried["feasible"]:
                print_notes(_of_an_anchor(tried["usd_per_h"], default_state_dir()))
        if not tried["feasible"]:
            raise typer.Exit(INFEASIBLE)
        return
    found = fleet.submit(spec)
    if as_json:
        (print_line if follow else print_document)(found)
    else:
        print_submitted(found, spec)
    if follow:
        raise typer.Exit(follow_log(fleet.line, found["job_id"], rank=0, lines=as_json))


def _of_an_anchor(usd_per_h: float, state_dir: Path) -> list[str]:
    """Whether the controller should live elsewhere, where it could."""
    from sublet.errors import SubletError
    from sublet.runtime.providers.aws.config import config_path, read_config

    try:
        config = read_config(config_path(state_dir))
    except SubletError:  # nothing of AWS is set up, or not as it should be: another command says so
        return []
    rent = config.anchor_usd_per_h
    hours = pays_every_h(usd_per_h, lease_s=config.lease_s, anchor_usd_per_h=rent)
    lost = loss_usd(usd_per_h, config.lease_s)
    told = (
        f"if this machine is closed while it trains, its nodes cost USD {lost:.2f} more and end: a host "
        f"for the controller (sublet move --to aws, USD {rent:g}/h) pays if that is more often than every {hours:.1f} h"
    )
    return [told]
