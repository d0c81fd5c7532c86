"""Jobs whose speed changes from epoch to epoch, when every change of worker count costs a restart."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sublet.domain.demand import Demand
from sublet.domain.job import Job
from sublet.domain.shape import Spread, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.phased import Phased
from sublet.perf.restart import RESTART_S
from sublet.planning.menu import menu_of
from sublet.policies.boa.policy import Boa, boa_widths
from sublet.policies.price.policy import Price
from sublet.sim.simulator import simulate
from sublet.sim.workloads.jobrows import sizing_of
from sublet.solve.arrays import Floats
from sublet.solve.curves import Curves
from sublet.solve.phases import Phases
from sublet.solve.plan_book import plan_book
from sublet.solve.price import Frontier, frontier
from sublet_lab.studies.boa.cases import SITE, gpu_cloud
from sublet_lab.studies.study import Findings, StudyTable, Tell, at_most

MIX = {"cifar10": 66, "deepspeech2": 12, "bert": 7}  # of 85 jobs in 26,752 s
SPAN_H = 26_752 / SECONDS_PER_H
WIDEST = 16
NODE = 4  # GPUs on the nodes on which the speeds were measured
NEVER = 1e9  # seconds
CERTAIN_H = 1e6  # of counting: a forecast that is worth this much is not doubted


@dataclass(frozen=True, slots=True)
class _Mix:
    """The 85-job mix with one set of restart times."""

    likes: dict[str, Job]

    @classmethod
    def of(cls, restart_s: dict[str, float]) -> _Mix:
        likes = {}
        for model in MIX:
            sizing = sizing_of(model)
            if sizing is None or not isinstance(sizing.speed, Phased):
                raise TypeError(model)
            likes[model] = Job(
                id=model,
                submit_s=0.0,
                work=sizing.work,
                speed=_by_width(sizing.speed),
                max_gpus=WIDEST,
                restart_s=restart_s[model],
                model=model,
            )
        return cls(likes)

    def jobs(self, spans: int, rng: np.random.Generator) -> list[Job]:
        """The mix so many times over, at random."""
        from dataclasses import replace

        return [
            replace(like, id=f"{model}-{at}", submit_s=at_s)
            for model, like in self.likes.items()
            for at, at_s in enumerate(np.sort(rng.random(spans * MIX[model])) * spans * SPAN_H * SECONDS_PER_H)
        ]

    def frontier(self, *, restart_s: float | None = None) -> Frontier:
        """The exact dynamic program for one span: `restart_s` is that of changes, if not the jobs' own."""
        times, costs = [], []
        for like in self.likes.values():
            menu = menu_of(like, (SITE,))
            change_h = menu.restart_C if restart_s is None else np.full(len(menu.shapes), restart_s / SECONDS_PER_H)
            phases = Phases.from_tables(
                menu.hours(like.work)[None], menu.gpus_C[None], restart=change_h[None], start=menu.start_C[None]
            )
            hulls = plan_book(phases).curves.hulls
            times.append(hulls.time_V)
            costs.append(hulls.cost_V)
        most = max(map(len, times))
        return frontier(
            Curves.from_tables([_row(row, most) for row in times], [_row(row, most) for row in costs]),
            list(map(float, MIX.values())),
        )

    def demand(self) -> Demand:
        """One span of it."""
        from dataclasses import replace

        jobs = [replace(like, id=f"{model}-{at}") for model, like in self.likes.items() for at in range(MIX[model])]
        return Demand.from_jobs(jobs, SPAN_H)

    def glued_h(self, budget: float) -> float:
        """The mean time that the published calculator of worker counts plans for, on paper; NaN if it finds no plan."""
        widths = boa_widths(self.demand(), (SITE,), 1.0, budget, 0)
        if widths is None:
            return float("nan")
        total_h = 0.0
        for kind, arrivals in self.demand().kinds.items():
            menu = menu_of(arrivals.like, (SITE,))
            column = {int(gpus): at for at, gpus in enumerate(menu.gpus_C.tolist())}
            hours = menu.hours(arrivals.work)
            changes = 1 + sum(a != b for a, b in pairwise(widths[kind]))
            on_job = sum(hours[epoch, column[gpus]] for epoch, gpus in enumerate(widths[kind]))
            total_h += arrivals.jobs * (on_job + changes * arrivals.like.restart_s / SECONDS_PER_H)
        return total_h / sum(MIX.values())


def restarts(quick: bool, tell: Tell) -> Findings:
    """Never worse than the exact dynamic program by more than a hundredth, at the same dollars."""
    spans = 4 if quick else 20
    checks, rows = [], []
    for source, over in (("sia", 1.5),) if quick else (("sia", 1.15), ("sia", 1.5), ("sia", 2.0), *AWS):
        mix = _Mix.of(dict(RESTART_S[source]))
        line = mix.frontier()
        budget = over * line.least / SPAN_H
        label = f"restarts {'/'.join(f'{mix.likes[m].restart_s:g}' for m in MIX)} s, {budget:.1f} GPUs"
        jobs = mix.jobs(spans, np.random.default_rng(3))
        cells = []
        for name, policy in (("boa", Boa()), ("price, certain", Price(trusted_h=CERTAIN_H)), ("price", Price())):
            tell(f"{label}, {name}")
            run = simulate(jobs, policy, gpu_cloud(budget), expected=mix.demand(), keep_segments=False)
            exact_s = line.at(max(line.least, run.metrics.usd / spans)).jobs / sum(MIX.values()) * SECONDS_PER_H
            ratio = run.metrics.mean_s / exact_s
            spent = run.metrics.usd / (spans * SPAN_H)
            cells += [f"{run.metrics.mean_s:,.0f}", f"{spent:.1f}", f"{ratio:.3f}"]
            if name == "price":  # what ships is what is held to it
                checks.append(at_most(f"{label}: price over exact DP at the same dollars", ratio, 1.01))
        money = budget * SPAN_H
        jobs_of = sum(MIX.values())
        paper = [
            mix.frontier(restart_s=NEVER).at(money).jobs / jobs_of * SECONDS_PER_H,
            mix.glued_h(budget) * SECONDS_PER_H,
            line.at(money).jobs / jobs_of * SECONDS_PER_H,
        ]
        rows.append([label, *(f"{seconds:,.0f}" for seconds in paper), *cells])
    columns = ["case", "one width", "glued", "exact DP", "boa", "GPUs", "/ DP"]
    columns += ["price, certain", "GPUs", "/ DP", "price", "GPUs", "/ DP"]
    note = (
        "restarts: boa and 'price, certain' take the forecast, which is true, for certain; price as it ships trusts it "
        "like any other, pays for that where the budget is tight, and is what is checked; speeds by epoch are those "
        "of the Pollux profiles: the design's tables for this comparison are not public, so its seconds (4,204 / "
        "3,544 / 3,283 at its tightest budget) are not comparable; all times are in seconds"
    )
    table = StudyTable(title="Restarts: planned on paper, and simulated", columns=columns, rows=rows)
    return Findings(checks=checks, tables=[table], notes=[note])


AWS = (("boa-aws", 1.15), ("boa-aws", 1.5), ("boa-aws", 2.0))


def _by_width(speed: Phased) -> Phased:
    """The same speeds on nodes with one GPU: those of as many GPUs packed on real nodes."""
    starts = (0.0, *speed.ends[:-1])

    def rates(gpu: str, spread: Spread) -> list[float]:
        return [speed.rate(gpu, packed(sum(spread), NODE), done) for done in starts]

    return Phased(ends=speed.ends, rates=rates)


def _row(values: Floats, width: int) -> Floats:
    return np.pad(values, (0, width - len(values)), constant_values=np.inf)
