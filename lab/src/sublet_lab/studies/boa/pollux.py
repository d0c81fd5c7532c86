"""The 160 jobs of the first Pollux workload on rented T4 nodes: six policies, five sums of money, equal dollars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sublet.domain.demand import Demand
from sublet.domain.money import Price as UsdPerHour
from sublet.domain.offer import Offer
from sublet.domain.plan import Policy
from sublet.domain.units import SECONDS_PER_H
from sublet.market.catalogue import CATALOGUES, load_catalogue
from sublet.policies.boa.policy import Boa
from sublet.policies.equal import Equal
from sublet.policies.fifo import Fifo
from sublet.policies.price.policy import Price
from sublet.sim import scenario
from sublet.sim.simulator import Run, simulate
from sublet.sim.workloads import load_workload
from sublet.sim.workloads.workload import Workload
from sublet.sim.world import Physics
from sublet_lab.rivals.boa_ideal import BoaIdeal
from sublet_lab.rivals.max_speedup import MaxSpeedup
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_most

OFFER = "aws:g4dn.12xlarge:us-east-1"
AVERAGES = (110.0, 130.0, 160.0, 200.0, 260.0)  # USD per hour; the work cannot be done for less than 98
BOOT = Physics(provision_s=120.0)
HALVINGS = 9  # of the search for equal dollars
CLOSE = 0.01
LEAST = 98.4  # USD per hour
AIMED = ("boa", "boa-ideal")


def pollux(quick: bool, tell: Tell) -> Findings:
    """Each budget is what `price` aims at; the others get the knob with which they spend as many dollars."""
    workload = load_workload("pollux-1")
    offer = t4_nodes()
    rows, checks = [], []
    for average in AVERAGES[1:2] if quick else AVERAGES:
        tell(f"Pollux workload, {average:g} USD/h, price")
        ours = aimed(workload, offer, Price(), average)
        rows.append(_row(average, "price", ours, ours))
        others: dict[str, Callable[[float], Run]] = {
            "boa": partial(aimed, workload, offer, Boa()),
            "boa-ideal": partial(aimed, workload, offer, BoaIdeal()),
            "fifo": partial(_capped, workload, offer, Fifo()),
            "equal": partial(_capped, workload, offer, Equal()),
            "max-speedup": partial(_capped, workload, offer, MaxSpeedup()),
        }
        for name, run_at in others.items():
            tell(f"Pollux workload, {average:g} USD/h, {name}")
            least = LEAST if name in AIMED else 1.0  # below what the work costs, less money buys no cheaper plan
            run = _equal_dollars(run_at, ours.metrics.usd, (least, 3 * average), HALVINGS // 2 if quick else HALVINGS)
            rows.append(_row(average, name, run, ours))
            if name in AIMED or run.metrics.usd <= ours.metrics.usd * (1 + CLOSE):
                label = f"Pollux workload at {average:g} USD/h: mean time of price over {name}, equal dollars"
                limit = 1.03 if name in AIMED else 1.0  # told the truth, a constant price is hard to beat
                checks.append(at_most(label, ours.metrics.mean_s / run.metrics.mean_s, limit))
    columns = ["aim, USD/h", "policy", "mean, min", "p99, h", "USD", "dollars / price's", "mean / price's"]
    note = (
        "fifo, equal and max-speedup aim at no average: each gets the cap on dollars per hour with which its bill is "
        "closest to that of price; all see the true rates of arrival"
    )
    table = StudyTable(title="The Pollux workload at equal dollars", columns=columns, rows=rows, texts=2)
    return Findings(checks=checks, tables=[table], notes=[note])


def t4_nodes() -> Offer:
    """Nodes of four T4 each, on demand."""
    return load_catalogue(next(iter(CATALOGUES))).find(OFFER)


def aimed(workload: Workload, offer: Offer, policy: Policy, average: float) -> Run:
    """A run that aims at this many dollars per hour."""
    scene = scenario.rented([offer], physics=BOOT)
    scene = scenario.with_average(scene, UsdPerHour.from_usd_per_h(f"{average:.4f}"))
    return _run(workload, policy, scene)


def _capped(workload: Workload, offer: Offer, policy: Policy, burn: float) -> Run:
    nodes = max(1, round(burn / offer.price.usd_per_h))
    cap = UsdPerHour(nodes * offer.price.micro_usd_per_h)
    return _run(workload, policy, scenario.rented([offer], cap, physics=BOOT))


def _run(workload: Workload, policy: Policy, scene: scenario.Scene) -> Run:
    expected = Demand.from_jobs(workload.jobs, workload.span_s / SECONDS_PER_H)
    return simulate(workload.jobs, policy, scene.cloud, expected=expected, keep_segments=False)


def _equal_dollars(run_at: Callable[[float], Run], usd: float, knobs: tuple[float, float], halvings: int) -> Run:
    """The run, among those tried by halving, whose bill is closest to `usd`."""
    low, high = knobs
    best: Run | None = None
    for _ in range(halvings):
        middle = (low * high) ** 0.5
        run = run_at(middle)
        if best is None or abs(run.metrics.usd - usd) < abs(best.metrics.usd - usd):
            best = run
        if abs(run.metrics.usd - usd) < 0.002 * usd:
            break
        low, high = (middle, high) if run.metrics.usd < usd else (low, middle)
    if best is None:
        raise AssertionError
    return best


def _row(average: float, name: str, run: Run, ours: Run) -> list[str]:
    found, base = run.metrics, ours.metrics
    return [
        f"{average:g}",
        name,
        f"{found.mean_s / 60:,.1f}",
        f"{found.p99_s / SECONDS_PER_H:,.1f}",
        f"{found.usd:,.0f}",
        f"{found.usd / base.usd:.3f}",
        f"{found.mean_s / base.mean_s:.2f}x",
    ]
