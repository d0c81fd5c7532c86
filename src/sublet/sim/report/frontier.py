"""A rental plan on paper: the frontier of budget and time as a picture, one page that holds it all, and JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sublet import __version__
from sublet.domain.quantity import counted
from sublet.domain.units import SECONDS_PER_H
from sublet.market.catalogue import Quote
from sublet.rental.plan import ClassPlan, Held, RentalPlan
from sublet.sim.report.figures import NOTHING, duration
from sublet.sim.report.folder import write_all
from sublet.sim.report.html import document, figure, listing, table
from sublet.sim.report.plots import INK, POLICY_COLOURS, canvas, set_style
from sublet.sim.workloads.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axis import Axis

SCHEMA_VERSION = 1
PAGE = "plan.html"
SMOOTH = 500  # points of the line
WIDE = 12.0  # a range of budgets wider than this is drawn on a logarithmic axis


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan, what it is for, and what was assumed."""

    plan: RentalPlan
    workload: Workload
    command: str
    quotes: tuple[Quote, ...]  # what the plan could choose from
    notes: tuple[str, ...]


def write_plan_report(report: PlanReport, folder: Path) -> Path:
    """The page, the picture and `plan.json`; the path of the page."""
    picture = frontier_png(report.plan)
    facts = json.dumps(json_from_plan(report), indent=2, allow_nan=False)
    page = _page(report, picture)
    write_all(folder, {"frontier.png": picture, "plan.json": f"{facts}\n".encode(), PAGE: page.encode()})
    return folder / PAGE


# ---------------------------------------------------------------------- tables


def tables_from_plan(plan: RentalPlan) -> tuple[list[list[str]], list[str], list[list[str]]]:
    """The figures of the plan as (what, how much); then titles and rows of the classes."""
    return _figures(plan), ["class", "jobs/h", "shape", "node", "share", "time", "USD/job"], _rows(plan)


def reasons_from_plan(plan: RentalPlan) -> list[str]:
    """Per class, the prices that decided."""
    return [f"{of.name}: {of.why}" for of in plan.classes]


def _figures(plan: RentalPlan) -> list[list[str]]:
    least, most = plan.least, plan.most
    short = math.isfinite(plan.value_of_time)
    more = f"cuts the mean completion time by {duration(plan.saved_s_per_usd)}" if short else "buys nothing"
    figures = [
        ["mean completion time", duration(plan.mean_s)],
        ["spend", f"USD {plan.spend_usd_per_h:,.2f} per hour of the budget of {plan.budget_usd_per_h:,.2f}"],
        ["value of time", f"USD {plan.value_of_time:,.2f} per job-hour" if short else NOTHING],
        ["one more USD/h", more],
        ["GPUs held", _describe_held(plan.held)],
    ]
    if len(plan.held_by_kind) > 1:
        figures += [[f"of which {kind}", _describe_held(held)] for kind, held in plan.held_by_kind.items()]
    for kind, price in plan.congestion_usd_per_gpu_h.items():
        scarce = f"USD {price:,.3f} per hour, beside the rent" if math.isfinite(price) else NOTHING
        figures.append([f"price of a scarce {kind}", scarce])
    figures.append(["smallest budget", f"USD {least.usd_per_h:,.2f} per hour, for a mean of {duration(least.mean_s)}"])
    figures.append(["largest of use", f"USD {most.usd_per_h:,.2f} per hour, for a mean of {duration(most.mean_s)}"])
    return figures


def _describe_held(held: Held) -> str:
    return f"{held.mean:,.1f} on average, 99% of the time at most {held.p99:,}"


def _rows(plan: RentalPlan) -> list[list[str]]:
    """One row per shape; what concerns the class stands in its first row."""
    rows = []
    for of in plan.classes:
        for place, (shape, share) in enumerate(of.chosen):
            first = (of.name, f"{of.per_h:,.2f}") if place == 0 else ("", "")
            node = shape.offer.instance_type or shape.offer.id
            facts = (f"{share:.0%}", duration(SECONDS_PER_H * shape.hours), f"{shape.usd:,.3f}")
            rows.append([*first, str(shape), node, *facts])
    return rows


# ---------------------------------------------------------------------- JSON


def json_from_plan(report: PlanReport) -> dict[str, Any]:
    """Everything; what is infinite or does not exist is null."""
    plan, workload = report.plan, report.workload
    return {
        "schema_version": SCHEMA_VERSION,
        "command": report.command,
        "workload": workload.name,
        "source": workload.source,
        "licence": workload.licence,
        "jobs": len(workload),
        "jobs_per_h": plan.jobs_per_h,
        "budget_usd_per_h": plan.budget_usd_per_h,
        "value_of_time_usd_per_h": _number(plan.value_of_time),
        "mean_s": plan.mean_s,
        "spend_usd_per_h": plan.spend_usd_per_h,
        "saved_s_per_usd": _number(plan.saved_s_per_usd),
        "least_usd_per_h": plan.least.usd_per_h,
        "most_usd_per_h": plan.most.usd_per_h,
        "held": {"all": _json_from_held(plan.held), **{k: _json_from_held(v) for k, v in plan.held_by_kind.items()}},
        "congestion_usd_per_gpu_h": {kind: _number(price) for kind, price in plan.congestion_usd_per_gpu_h.items()},
        "offers": [_json_from_quote(quote, plan) for quote in report.quotes],
        "classes": [_json_from_class(of) for of in plan.classes],
        "frontier": [
            {"usd_per_h": at.usd_per_h, "mean_s": at.mean_s, "value_of_time_usd_per_h": _number(at.value_of_time)}
            for at in plan.frontier
        ],
        "notes": list(report.notes),
    }


def _json_from_quote(quote: Quote, plan: RentalPlan) -> dict[str, Any]:
    offer = quote.offer
    return {
        "id": offer.id,
        "gpu": offer.gpu,
        "gpus_per_node": offer.gpus_per_node,
        "market": str(offer.market),
        "usd_per_h": offer.price.usd_per_h,
        "usd_per_gpu_h": offer.usd_per_gpu_h,
        "reclaims_per_h": offer.hazard_per_h,
        "as_of": quote.as_of.isoformat(),
        "rented": any(offer.id == rented.id for rented in plan.offers),
    }


def _json_from_held(held: Held) -> dict[str, float]:
    return {"mean": held.mean, "p99": held.p99}


def _json_from_class(of: ClassPlan) -> dict[str, Any]:
    return {
        "name": of.name,
        "jobs": of.jobs,
        "jobs_per_h": of.per_h,
        "weight": of.weight,
        "mean_s": of.mean_s,
        "usd_per_job": of.usd,
        "why": of.why,
        "shapes": [
            {
                "share": share,
                "gpu": shape.offer.gpu,
                "market": str(shape.offer.market),
                "offer": shape.offer.id,
                "gpus": shape.gpus,
                "nodes": shape.nodes,
                "mean_s": SECONDS_PER_H * shape.hours,
                "usd_per_job": shape.usd,
                "slowdown_by_reclaims": shape.slowdown,
            }
            for shape, share in of.chosen
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------------- picture and page


def frontier_png(plan: RentalPlan) -> bytes:
    """Mean completion time over the budget; the plan is the dot."""
    from matplotlib import rc_context, rcdefaults

    buffer = io.BytesIO()
    with rc_context():
        rcdefaults()
        set_style()
        figure, (ax,) = canvas(rows=1, height_in=4.2)
        unit_s, unit = _unit(plan.mean_s)
        here, there = POLICY_COLOURS[0], POLICY_COLOURS[1]
        usd = [at.usd_per_h for at in plan.frontier]
        times = [at.mean_s / unit_s for at in plan.frontier]
        between = np.union1d(
            usd, np.linspace(usd[0] ** 0.5, usd[-1] ** 0.5, SMOOTH) ** 2
        )  # straight, but not on log axes
        ax.plot(between, np.interp(between, usd, times), color=there, linewidth=2.0)
        ax.plot(usd, times, ".", color=there, markersize=5)
        ax.plot([plan.spend_usd_per_h], [plan.mean_s / unit_s], "o", color=here, markersize=9, zorder=3)
        label = f"USD {plan.spend_usd_per_h:,.2f} per hour: {duration(plan.mean_s)}"
        ax.annotate(
            label,
            (plan.spend_usd_per_h, plan.mean_s / unit_s),
            (0, 16),
            textcoords="offset points",
            ha="left" if plan.spend_usd_per_h < math.sqrt(usd[0] * usd[-1]) else "right",
            color=here,
            fontweight="bold",
        )
        ax.axvline(plan.least.usd_per_h, color=INK, linewidth=0.8, linestyle=":")
        if usd[-1] > WIDE * usd[0] > 0:
            ax.set_xscale("log")
            _label(ax.xaxis)
        if plan.least.mean_s > WIDE * plan.most.mean_s > 0:
            ax.set_yscale("log")
            _label(ax.yaxis)
        ax.set_xlabel("budget, USD per hour (dotted: the smallest that can be met)")
        ax.set_ylabel(f"mean completion time, {unit}")
        figure.savefig(buffer, format="png", metadata={"Software": None})  # equal plans, equal files
    return buffer.getvalue()


def _label(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _unit(mean_s: float) -> tuple[float, str]:
    for unit_s, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if mean_s >= 2 * unit_s:
            return unit_s, unit
    return 1.0, "seconds"


def _page(report: PlanReport, picture: bytes) -> str:
    plan, workload = report.plan, report.workload
    figures, titles, rows = tables_from_plan(plan)
    title = f"{workload.name} for USD {plan.budget_usd_per_h:,.2f} per hour"
    lead = (
        f"{counted(len(workload), 'job')} arriving over {duration(workload.span_s)}, {plan.jobs_per_h:,.1f} per hour."
    )
    body = f"""<p class="lead">{escape(lead)}</p>
{table(["", ""], figures, texts=2)}
{figure("What other budgets would buy", picture)}
<h2>What to rent</h2>
{table(titles, rows, texts=1)}
<h2>Why</h2>
{listing(reasons_from_plan(plan))}
<h2>What was assumed</h2>
{listing(report.notes)}
<h2>Do it again</h2>
<pre>{escape(report.command)}</pre>
<footer>Sublet {escape(__version__)}.
Jobs: {escape(workload.source or "given")}{escape(f", {workload.licence}" if workload.licence else "")}.</footer>"""
    return document(title, body)
