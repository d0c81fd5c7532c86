"""Tight budgets: `price` beside all that its rivals can do for as much money, whatever they aim at.

A rival's spending does not rise steadily with its aim: a lower aim may leave more GPUs idle and cost more. So "the run
with as many dollars" may be one of two. Here each rival runs at many aims, and what counts is the lower left envelope
of its runs over dollars and mean time, with straight lines between them, though no single run is on a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sublet.domain.offer import Offer
from sublet.domain.plan import Plan, Policy, Snapshot
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import least_usd
from sublet.policies.boa.policy import Boa
from sublet.policies.price.policy import Price
from sublet.sim.workloads.workload import Workload
from sublet.solve.curves import lower_left
from sublet_lab.rivals.boa_ideal import BoaIdeal
from sublet_lab.studies.boa.pollux import aimed, t4_nodes
from sublet_lab.studies.ratio import Ratio
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_most
from sublet_lab.studies.unseen import NUMBERS, unseen_workload

# What concerns budgets was tried on whole workloads of the first two numbers, and looked at on others. None of that has
# met these jobs.
REPORTED = NUMBERS
OURS = (1.1, 1.2, 1.32, 1.63, 2.0)  # times the least that the work costs
THEIRS = tuple(float(aim) for aim in np.geomspace(1.0, 3.0, 22))
QUICK_THEIRS = THEIRS[::7]
RIVALS: dict[str, tuple[Policy, float]] = {"boa": (Boa(), 1.00), "boa-ideal": (BoaIdeal(), 1.02)}  # and the goal


class Spent(NamedTuple):
    """One run."""

    usd: float
    mean_s: float


def mean_at(runs: Sequence[Spent], usd: float) -> float:
    """The mean time that some mixture of these runs has for as many dollars; that of the cheapest if none is as cheap.

    >>> runs = [Spent(10.0, 60.0), Spent(20.0, 40.0), Spent(15.0, 70.0)]
    >>> mean_at(runs, 15.0), mean_at(runs, 30.0), mean_at(runs, 9.0)
    (50.0, 40.0, 60.0)
    """
    hull = lower_left([[run.mean_s for run in runs]], [[run.usd for run in runs]])
    return float(np.interp(usd, hull.cost_V, hull.time_V))


def tight_budgets(quick: bool, tell: Tell) -> Findings:
    """Every aim of ours against every aim of theirs."""
    offer, rows, means = t4_nodes(), [], dict[tuple[str, float], list[tuple[float, float]]]()
    for number in REPORTED[:1] if quick else REPORTED:
        workload = unseen_workload(number)
        name = workload.name
        least = _least(workload, offer)
        theirs = dict[str, list[Spent]]()
        for rival, (policy, _) in RIVALS.items():
            tell(f"{name}: {rival} at many budgets")
            theirs[rival] = [
                _spent(workload, offer, policy, aim * least) for aim in (QUICK_THEIRS if quick else THEIRS)
            ]
        for aim in OURS[2:3] if quick else OURS:
            tell(f"{name}: price at {aim:g} times the least")
            ours = _spent(workload, offer, Price(), aim * least)
            texts = []
            for rival, runs in theirs.items():
                pair = (ours.mean_s, mean_at(runs, ours.usd))
                means.setdefault((rival, aim), []).append(pair)
                texts.append(f"{pair[0] / pair[1]:.3f}{' *' if ours.usd < min(runs).usd else ''}")
            rows.append([name, f"{aim:g}", f"{ours.usd:,.0f}", f"{ours.mean_s / 60:,.1f}", *texts])
    columns = ["workload", "aim / least", "USD", "mean, min", *(f"over {rival}" for rival in RIVALS)]
    table = StudyTable(title="Tight budgets, by envelope", columns=columns, rows=rows)
    note = (
        "tight budgets: all know speeds, sizes and the true rates of arrival; boa-ideal pays for whole nodes as price "
        "does, boa as published; a mixture of two runs of a rival counts as a run of it; * none of its runs is as "
        "cheap: over its cheapest"
    )
    checks = []
    for (rival, aim), pairs in means.items():
        ratio = Ratio.over(*zip(*pairs, strict=True))
        label = f"at {aim:g} times the least: mean time of price over the envelope of {rival}"
        checks.append(at_most(label, ratio.mean, RIVALS[rival][1], off=ratio.off))
    return Findings(checks=checks, tables=[table], notes=[note])


def _spent(workload: Workload, offer: Offer, policy: Policy, average: float) -> Spent:
    found = aimed(workload, offer, policy, average).metrics
    return Spent(found.usd, found.mean_s)


@dataclass(slots=True)
class _Curious:
    """Notes at its first look what the work costs at least, in dollars per hour, and does as another does."""

    asked: Policy
    least: list[float] = field(default_factory=list)

    def decide(self, snapshot: Snapshot) -> Plan:
        """As the other decides."""
        if not self.least and snapshot.expected is not None:
            self.least.append(least_usd(Terms.from_snapshot(snapshot)) / snapshot.expected.hours)
        return self.asked.decide(snapshot)


def _least(workload: Workload, offer: Offer) -> float:
    curious = _Curious(Price())
    aimed(workload, offer, curious, 1e4)  # in a hurry, which is soon over
    return curious.least[0]
