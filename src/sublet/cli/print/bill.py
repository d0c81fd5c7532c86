"""The bill as a table and as a sentence: what the dollars bought, by job."""

from __future__ import annotations

from typing import Any

import typer

from sublet.cli.print.figures import fine, labels, money
from sublet.cli.print.tables import print_table
from sublet.domain.units import GB

PARTS = ("useful", "unknown", "redone", "restart", "idle", "checkpoint", "total")


def print_bill(found: dict[str, Any]) -> None:
    """A row per job, for the controller host, for what no job used, and for all of it; then the bill in a sentence."""
    titles, rows = bill_rows(found)
    print_table(titles, rows, words=(0,))
    if found["tiers"]:
        typer.echo("")
        print_table(*tier_rows(found), words=(0,))
    if found["moves"]:
        typer.echo("")
        print_table(*move_rows(found), words=(0,))
    typer.echo(f"\n{bill_sentence(found)}")


def bill_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells; dollars throughout."""
    titles = ["USD", *PARTS, "on-demand", "lost steps", "preempted"]
    if not found["jobs"]:
        return titles, [_row(found["name"] or "all", found)]
    called = labels(found["jobs"], "job_id")
    rows = [_row(called[job["job_id"]], job) for job in found["jobs"]]
    unused = {part: found[f"usd_{part}"] - sum(job[f"usd_{part}"] for job in found["jobs"]) for part in PARTS}
    if besides := found.get("usd_besides", 0.0):
        anchor = {part: besides if part in ("idle", "total") else 0.0 for part in PARTS}
        unused = {part: unused[part] - anchor[part] for part in PARTS}
        rows.append(["anchor", *(fine(anchor[part]) for part in PARTS), "", "", ""])
    rows.append(["no job", *(fine(unused[part]) for part in PARTS), "", "", ""])
    rows.append(_row("all", found))
    return titles, rows


def tier_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Cost and savings of each tier of checkpoints."""
    titles = ["checkpoints", "commits", "GB", "blocked, s", "USD", "resumes", "steps kept", "USD kept", "newest of"]
    rows = [
        [
            tier["tier"],
            f"{tier['commits']}",
            f"{tier['size_bytes'] / GB:.3g}",
            f"{tier['blocked_s']:.2f}",
            fine(tier["usd_blocked"]),
            f"{tier['resumes']}",
            f"{tier['steps_kept']}",
            fine(tier["usd_kept"]),
            "" if not tier["newest"] else "1 job" if tier["newest"] == 1 else f"{tier['newest']} jobs",
        ]
        for tier in found["tiers"]
    ]
    return titles, rows


def move_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Cost of changes of grids, by kind."""
    titles = ["grid changed", "times", "GB", "paused, s"]
    rows = [
        [move["kind"], f"{move['count']}", f"{move['size_bytes'] / GB:.3g}", f"{move['seconds']:.2f}"]
        for move in found["moves"]
    ]
    return titles, rows


def _row(name: str, bill: dict[str, Any]) -> list[str]:
    on_demand = bill["usd_on_demand"]
    return [
        name,
        *(fine(bill[f"usd_{part}"]) for part in PARTS),
        "-" if on_demand is None else fine(on_demand),
        f"{bill['steps_lost']}",
        f"{bill['preemptions_noticed'] + bill['preemptions_unnoticed']}",
    ]


def bill_sentence(found: dict[str, Any]) -> str:
    """`USD 1.92; on demand it would have been USD 4.10 (53% saved); 0 steps lost in 3 preemptions`."""
    from sublet.domain.quantity import counted

    text = money(found["usd_total"])
    on_demand = found["usd_on_demand"]
    if on_demand:
        saved = 1 - found["usd_total"] / on_demand
        text += f"; on demand it would have been {money(on_demand)}" + (
            f" ({saved:.0%} saved)" if saved > 0 and not found["usd_unknown"] else ""
        )
    if fine(found["usd_unknown"]) != fine(0.0):
        text += f"; of {money(found['usd_unknown'])} nothing says that the work was kept"
    noticed, unnoticed = found["preemptions_noticed"], found["preemptions_unnoticed"]
    lost = counted(found["steps_lost"], "step")
    return f"{text}; {lost} lost in {counted(noticed, 'preemption')} with notice and {unnoticed} without"
