"""`sublet what-if`: when all that runs will be done, what it will cost, and what more money would change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import print_document, print_notes, print_table

__all__ = ["what_if"]


def what_if(
    usd_per_h: Annotated[
        float, typer.Option("--more", metavar="USD", help="So much more an hour, on the burn limit and the average.")
    ] = 0.0,
    usd: Annotated[float, typer.Option("--more-purse", metavar="USD", help="So much more in the total budget.")] = 0.0,
    hours: Annotated[float, typer.Option(metavar="H", help="How far to look.")] = 24.0,
    futures: Annotated[int, typer.Option(metavar="N", help="How many to live.")] = 20,
    market: Annotated[
        str, typer.Option(metavar="NAME", help="A record from 'sublet traces'; by default what the provider replays.")
    ] = "",
    seed: opt.Seed = 0,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Live futures of what runs now, over recorded days of a spot market; nothing is changed."""
    from sublet.client import connect

    found = connect().what_if(
        hours=hours, futures=futures, more_usd_per_h=usd_per_h, more_usd=usd, market=market, seed=seed
    )
    if opt.wants_document(output, json):
        print_document(found)
        return
    branches = [branch for branch in (found["as_is"], found["otherwise"]) if branch is not None]
    typer.echo(f"{found['futures']} futures of {hours:g} h:")
    heads = ["", "all done in", "costs from now on", "done in time", "nodes taken"]
    print_table(heads, [_row(branch) for branch in branches], words=(0, 1, 2))
    for branch in branches:
        typer.echo(f"\n{branch['label']}")
        rows = [[job["job_id"], _ends(job["finish_s"]), f"{job['finished']:.0%}"] for job in branch["jobs"]]
        print_table(["job", "ends in", "of futures"], rows, words=(0, 1))
    print_notes(found["notes"])


def _row(branch: Mapping[str, Any]) -> list[str]:
    from sublet.cli.print.figures import money

    cost = branch["cost_usd"]
    costs = f"{money(cost['p50'])} ({money(cost['p10'])} to {money(cost['p90'])})"
    return [branch["label"], _ends(branch["finish_s"]), costs, f"{branch['finished']:.0%}", f"{branch['losses']:.1f}"]


def _ends(spread: Mapping[str, Any]) -> str:
    from sublet.cli.print.figures import span

    low, middle, high = ("later" if spread[name] is None else span(spread[name]) for name in ("p10", "p50", "p90"))
    return f"{middle} ({low} to {high})"
