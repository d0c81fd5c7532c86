"""DeepVM's planner on its own ground: the clusters at 3 USD/h, and 98 budgets over ten virtual machines."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from sublet.advise.frontier import Clusters, Limits, pick
from sublet.sim.report.plots import POLICY_COLOURS, canvas, set_style
from sublet_lab.studies.deepvm.planner import (
    ANCHORS,
    AWS,
    VIRTUAL,
    Cluster,
    clusters,
    cost_first,
    performance_first,
    planned,
    planned_without_scaling,
)
from sublet_lab.studies.deepvm.program import best_cluster
from sublet_lab.studies.study import Check, Findings, StudyTable, Tell, equals, within

BUDGETS = tuple(tenths / 10 for tenths in range(101))  # USD per hour; three of them buy nothing
FEASIBLE = 98
QUICK_EVERY = 7  # budgets at which a quick run solves the integer program
BEST_SCORES = {1.0: 3500, 3.0: 11231, 5.0: 13628, 8.0: 17350, 10.0: 21606}  # of an own re-run of the method
AT_TEN = {"cost-first": 2000, "performance-first": 14943, "no-scale": 3000, "deepvm": 13999}


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The score of each planner at one budget, and the best possible one."""

    budget: float
    scores: dict[str, float]
    best: float


def at_three_dollars() -> Findings:
    """The published clusters on AWS machines, by their rent."""
    found = planned(3.0, AWS, ANCHORS)
    rivals = {"cost-first": cost_first(3.0, AWS), "performance-first": performance_first(3.0, AWS)}
    checks = [
        equals(f"3 USD/h: rent of choice {at + 1}", found[at].usd_per_h, usd, published=usd, unit="USD/h")
        for at, usd in enumerate((2.8526, 2.8746, 2.8986))
    ]
    for (name, cluster), usd in zip(rivals.items(), (2.8930, 2.8168), strict=True):
        ours = cluster.usd_per_h if cluster else float("nan")
        checks.append(equals(f"3 USD/h: rent of {name}", ours, usd, published=usd, unit="USD/h"))
    rows = [[f"deepvm {at + 1}", str(each), f"{each.usd_per_h:.4f}"] for at, each in enumerate(found)]
    rows += [[name, str(each), f"{each.usd_per_h:.4f}"] for name, each in rivals.items() if each]
    return Findings(
        checks=checks,
        tables=[StudyTable(title="At 3 USD/h", columns=["planner", "cluster", "USD/h"], rows=rows, texts=2)],
    )


def sweep(quick: bool, tell: Tell) -> Findings:
    """All budgets: the published scores, and program against enumeration; the adviser is shown beside them."""
    tell("98 budgets on ten virtual machines")
    swept = [one for budget in BUDGETS if (one := _swept(budget)) is not None]
    share = [one.scores["deepvm"] / one.best for one in swept]
    beaten = sum(one.scores["performance-first"] > one.scores["deepvm"] for one in swept)
    last = swept[-1]
    checks = [
        equals("sweep: budgets that buy something", len(swept), FEASIBLE, published=FEASIBLE),
        *(
            equals(f"10 USD/h: score of {name}", round(last.scores[name]), score, published=score)
            for name, score in AT_TEN.items()
        ),
        within(
            "sweep: deepvm's mean share of the best",
            100 * fmean(share),
            87.6,
            0.002,
            prototype=87.6,
            unit="%",
        ),
        within("sweep: deepvm's least share of the best", 100 * min(share), 46, 0.01, prototype=46, unit="%"),
        *(
            equals(f"{one.budget:g} USD/h: best attainable score", round(one.best), score, prototype=score)
            for one in swept
            for score in ((BEST_SCORES[one.budget],) if one.budget in BEST_SCORES else ())
        ),
        equals("sweep: budgets at which performance-first beats deepvm", beaten, 13, published=13),
    ]
    tell("the same as an integer program")
    checks.append(_program_check(swept[::QUICK_EVERY] if quick else swept))
    return Findings(checks=checks, tables=[_table(swept)], plots={"Score by budget, paper's own score": _plot(swept)})


def advised(found: Sequence[Cluster], usd_per_h: float) -> Cluster:
    """The choice of Sublet's adviser among DeepVM's clusters: the fastest within the rent, by the paper's own score.

    The score is taken for the speed, so one unit of work takes 1 / score hours; the paper knows no preemptions.
    """
    hours_C = np.array([1.0 / cluster.performance for cluster in found])
    rent_C = np.array([cluster.usd_per_h for cluster in found])
    return found[
        pick(Clusters(hours_C=hours_C, usd_C=rent_C * hours_C, usd_per_h_C=rent_C), Limits(usd_per_h=usd_per_h))
    ]


def _swept(budget: float) -> Swept | None:
    found = clusters(budget, VIRTUAL, ANCHORS)
    if not found:
        return None
    chosen = {
        "cost-first": cost_first(budget, VIRTUAL),
        "performance-first": performance_first(budget, VIRTUAL),
        "no-scale": planned_without_scaling(budget, VIRTUAL, ANCHORS),
        "deepvm": planned(budget, VIRTUAL, ANCHORS)[0],
        "adviser": advised(found, budget),
    }
    scores = {name: cluster.performance if cluster else 0.0 for name, cluster in chosen.items()}
    return Swept(budget=budget, scores=scores, best=max(cluster.performance for cluster in found))


def _program_check(swept: Sequence[Swept]) -> Check:
    """At how many budgets both find clusters of the same objective, within the rent."""
    agreed = 0
    for one in swept:
        listed, solved = planned(one.budget, VIRTUAL, ANCHORS)[0], best_cluster(one.budget, VIRTUAL, ANCHORS)
        if solved is not None and solved.usd_per_h <= one.budget + 1e-9:
            agreed += abs(solved.objective - listed.objective) <= 1e-9 * listed.objective
    return equals("sweep: budgets at which the integer program equals enumeration", agreed, len(swept))


def _table(swept: Sequence[Swept]) -> StudyTable:
    names = list(swept[0].scores)
    rows = [
        [f"{one.budget:g}", *(f"{one.scores[name]:.0f}" for name in names), f"{one.best:.0f}"]
        for one in swept
        if one.budget in BEST_SCORES
    ]
    return StudyTable(title="Score by budget", columns=["USD/h", *names, "best attainable"], rows=rows, texts=0)


def _plot(swept: Sequence[Swept]) -> bytes:
    """All five curves, none of them cut off: the published picture ends at DeepVM's last value."""
    from matplotlib import rc_context, rcdefaults

    buffer = io.BytesIO()
    with rc_context():
        rcdefaults()
        set_style()
        figure, (ax,) = canvas(rows=1, height_in=4.2)
        budgets = [one.budget for one in swept]
        ax.plot(budgets, [one.best for one in swept], color="#c9ced6", linewidth=6, label="best attainable")
        for colour, name in zip(POLICY_COLOURS, swept[0].scores, strict=False):
            ax.plot(budgets, [one.scores[name] for one in swept], color=colour, linewidth=1.8, label=name)
        ax.set_xlabel("budget, USD per hour")
        ax.set_ylabel("score x nodes x K(nodes)")
        ax.legend(frameon=False)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
