"""How `sublet plan` answers: its tables, and what a reader of them should know of offers and assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from sublet.cli.print.tables import print_notes, print_table

if TYPE_CHECKING:
    from datetime import date

    from sublet.market.catalogue import Quote
    from sublet.rental.plan import RentalPlan
    from sublet.sim.report.frontier import PlanReport


def print_plan(report: PlanReport) -> None:
    """The plan, its reasons, and its assumptions."""
    from sublet.domain.quantity import counted
    from sublet.sim.report.figures import duration
    from sublet.sim.report.frontier import reasons_from_plan, tables_from_plan

    workload, made = report.workload, report.plan
    arriving = (
        f"{counted(len(workload), 'job')} arriving over {duration(workload.span_s)}, {made.jobs_per_h:,.1f} per hour"
    )
    typer.echo(f"{workload.name}: {arriving}\n")
    figures, titles, rows = tables_from_plan(made)
    print_table([f"USD {made.budget_usd_per_h:,.2f} per hour", ""], figures, words=(0, 1))
    typer.echo()
    print_table(titles, rows, words=(0, 2, 3))
    typer.echo("\nwhy")
    print_notes(reasons_from_plan(made))
    typer.echo("\nassumed")
    print_notes(report.notes)


def notes_on_offers(plan: RentalPlan, quotes: Sequence[Quote], today: date) -> list[str]:
    """Notes on the offers of the plan, with the age of their prices."""
    by_id = {quote.offer.id: quote for quote in quotes}
    notes = []
    for offer in plan.offers:
        quote = by_id[offer.id]
        price = f"USD {offer.price.usd_per_h:,.3f} per hour, USD {offer.usd_per_gpu_h:,.3f} per GPU"
        age = f"price of {quote.as_of.isoformat()}, {quote.age_days(today)} days old"
        notes.append(f"rents {offer.id} ({offer.gpus_per_node} x {offer.gpu}) at {price}; {age}")
    if len(quotes) > len(plan.offers):
        notes.append(f"chosen from {len(quotes)} offers of {', '.join(sorted({q.offer.gpu for q in quotes}))}")
    return notes


def notes_on_plan(plan: RentalPlan, provision_s: float, quotas: Mapping[str, float]) -> list[str]:
    """Basis of the figures."""
    boot = f" and {provision_s:g} s to boot, both" if provision_s else " (booting is not included: --provision-s),"
    notes = [
        "means over the long run, if jobs keep arriving as they do here (number of jobs / span) and no job ever waits",
        "a job pays for its share of a node; GPUs left over on nodes (fragmentation) are not included",
        f"every start takes the job's restart time{boot} paid for",
        "GPUs held 99% of the time: as for Poisson arrivals (M/G/infinity), exact then; bursts need more",
    ]
    if any(shape.nodes > 1 for of in plan.classes for shape, _ in of.chosen):
        notes.append(
            "speeds over several nodes are as profiled; small nodes may have a slower network than was measured"
        )
    if any(of.weight != 1.0 for of in plan.classes):
        notes.append("mean times are weighted by the weights of the jobs")
    if quotas:
        limits = ", ".join(f"{most:g} {kind}" for kind, most in quotas.items())
        notes.append(f"quota: {limits} on average, not at every moment")
    return notes
