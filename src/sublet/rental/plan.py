"""A rental plan for work that keeps arriving, on a budget: the shape of every class, and the whole frontier.

The plan is that of `docs/background/the-price-of-time.md`: no job waits, and every class takes the shape that minimises
(weight x value of time + rent) x time. Its figures are long-run means. They hold if GPUs can always be had. The number
of jobs present is then Poisson for each kind (the queue M/G/infinity), and the GPUs held a compound Poisson sum, whose
distribution follows exactly from its characteristic function by a Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sublet.domain.job import Job
from sublet.domain.offer import Offer
from sublet.domain.quantity import at_least
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible, InvalidValue, UnknownName
from sublet.rental.quota import Limited
from sublet.rental.shapes import JobClass, RentalShape, classes_from_jobs, shapes_of
from sublet.solve.arrays import Floats
from sublet.solve.curves import Curve, Curves
from sublet.solve.price import Frontier, frontier

ROUNDING = 1e-9
LIMITED_POINTS = 33  # of a frontier with quotas, each of which is a linear program of its own

# I classes, C shapes of each (padded: infinite time and cost), K kinds with a quota


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPlan:
    """The jobs of one class; times and costs are means of one job."""

    name: str
    jobs: int
    per_h: float
    weight: float
    chosen: tuple[tuple[RentalShape, float], ...]  # shape and the share of the jobs that takes it
    why: str

    @property
    def mean_s(self) -> float:
        """From arrival to completion."""
        return SECONDS_PER_H * sum(share * shape.hours for shape, share in self.chosen)

    @property
    def usd(self) -> float:
        """Cost of one job."""
        return sum(share * shape.usd for shape, share in self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """The result of a budget; between two corners the frontier is straight."""

    usd_per_h: float
    mean_s: float
    value_of_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalPlan:
    """The best for a budget. `mean_s` is weighted by the weights of the jobs."""

    budget_usd_per_h: float
    value_of_time: float  # USD per job-hour; infinite when more money buys nothing
    classes: tuple[ClassPlan, ...]
    jobs_per_h: float
    mean_s: float
    spend_usd_per_h: float
    saved_s_per_usd: float  # by how much the mean time falls for one more USD per hour
    held: Held
    held_by_kind: Mapping[str, Held]
    congestion_usd_per_gpu_h: Mapping[str, float] = field(default_factory=dict)  # of kinds with a quota; NaN: v is inf
    frontier: tuple[FrontierPoint, ...]

    @property
    def least(self) -> FrontierPoint:
        """The smallest budget that can be met."""
        return self.frontier[0]

    @property
    def most(self) -> FrontierPoint:
        """The budget beyond which nothing improves."""
        return self.frontier[-1]

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Those that the plan rents, each once."""
        return tuple(dict.fromkeys(shape.offer for of in self.classes for shape, _ in of.chosen))


def rental_plan(
    jobs: Sequence[Job],
    offers: Sequence[Offer],
    budget_usd_per_h: float,
    *,
    quotas: Mapping[str, float] | None = None,
    provision_s: float = 0.0,
) -> RentalPlan:
    """The shapes that make the mean completion time least within the budget; `Infeasible` if there are none.

    `quotas` limit the mean number of GPUs held of a kind. Every start takes `provision_s` beside the job's restart.
    """
    at_least("budget_usd_per_h", budget_usd_per_h, 0.0)
    at_least("provision_s", provision_s, 0.0)
    if not offers:
        raise InvalidValue("offers", [], "at least one")
    kinds = {offer.gpu for offer in offers}
    for kind, most in (quotas or {}).items():
        at_least(f"quota of {kind}", most, 0.0)
        if kind not in kinds:
            raise UnknownName("GPU kind on offer", kind, kinds)
    classes = classes_from_jobs(jobs)
    options = _Options.of(classes, [shapes_of(each, offers, provision_s=provision_s) for each in classes])
    return _limited(options, budget_usd_per_h, quotas) if quotas else _unlimited(options, budget_usd_per_h)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Options:
    """All shapes of all classes as tables, per job: the unit of work is the job, so that sizes and starts count."""

    classes: Sequence[JobClass]
    shapes: Sequence[Sequence[RentalShape]]
    rate_I: Floats
    weight_I: Floats
    hours_IC: Floats
    usd_IC: Floats

    @classmethod
    def of(cls, classes: Sequence[JobClass], shapes: Sequence[Sequence[RentalShape]]) -> _Options:
        hours_IC = np.full((len(classes), max(map(len, shapes))), np.inf)
        usd_IC = hours_IC.copy()
        for row, found in enumerate(shapes):
            hours_IC[row, : len(found)] = [shape.hours for shape in found]
            usd_IC[row, : len(found)] = [shape.usd for shape in found]
        rate_I = np.array([each.per_h for each in classes])
        weight_I = np.array([each.like.weight for each in classes])
        return cls(classes=classes, shapes=shapes, rate_I=rate_I, weight_I=weight_I, hours_IC=hours_IC, usd_IC=usd_IC)

    @property
    def arriving(self) -> float:
        """Weighted jobs per hour."""
        return float(self.rate_I @ self.weight_I)

    def held(self, kind: str) -> Floats:
        """GPU-hours of this kind that a job holds."""
        held_IC = np.zeros(self.hours_IC.shape)
        for row, found in enumerate(self.shapes):
            held_IC[row, : len(found)] = [shape.gpus * shape.hours * (shape.offer.gpu == kind) for shape in found]
        return held_IC

    def sums(self, share_IC: Floats) -> tuple[float, float]:
        """Money per hour, and the weighted mean time in seconds."""
        runs_IC = share_IC > 0
        usd_I = np.where(runs_IC, self.usd_IC, 0.0) * share_IC
        hours_I = np.where(runs_IC, self.hours_IC, 0.0) * share_IC
        spend = float(self.rate_I @ usd_I.sum(axis=1))
        jobs = float((self.rate_I * self.weight_I) @ hours_I.sum(axis=1))
        return spend, SECONDS_PER_H * jobs / self.arriving


def _unlimited(options: _Options, budget: float) -> RentalPlan:
    line = frontier(Curves.from_tables(options.hours_IC, options.usd_IC, options.weight_I), options.rate_I)
    points = _corners(line, options.arriving)
    if budget < line.least * (1 - ROUNDING):
        raise _too_little(points[0], budget)
    found = line.at(max(budget, line.least))
    rows = np.arange(len(options.classes))
    share_IC = np.zeros(options.hours_IC.shape)
    richer = 0.0 if found.share < ROUNDING else 1.0 if found.share > 1 - ROUNDING else found.share
    share_IC[rows, found.richer] += richer
    share_IC[rows, found.poorer] += 1 - richer
    return _plan(options, budget, share_IC, found.value_of_time, {}, points)


def _limited(options: _Options, budget: float, quotas: Mapping[str, float]) -> RentalPlan:
    program = Limited(
        rate_I=options.rate_I,
        weighted_IC=options.hours_IC * options.weight_I[:, None],
        cost_IC=options.usd_IC,
        held_KIC=np.stack([options.held(kind) for kind in quotas]),
        most_K=np.array(list(quotas.values()), dtype=np.float64),
        names_K=tuple(quotas),
    )
    least, most = (options.sums(plan.share_IC)[0] for plan in (program.cheapest(), program.at(math.inf)))
    points = []
    for money in np.unique(np.linspace(least**0.5, max(least, most) ** 0.5, LIMITED_POINTS)) ** 2 * (1 + ROUNDING):
        shared = program.at(float(money))
        spend, mean_s = options.sums(shared.share_IC)
        points.append(FrontierPoint(usd_per_h=spend, mean_s=mean_s, value_of_time=shared.value_of_time))
    if budget < least * (1 - ROUNDING):
        raise _too_little(points[0], budget)
    found = program.at(max(budget, least * (1 + ROUNDING)))
    congestion = dict(zip(quotas, found.price_K.tolist(), strict=True))
    return _plan(options, budget, found.share_IC, found.value_of_time, congestion, tuple(points))


def _plan(
    options: _Options,
    budget: float,
    share_IC: Floats,
    value_of_time: float,
    congestion: Mapping[str, float],
    points: tuple[FrontierPoint, ...],
) -> RentalPlan:
    plans, present = [], []
    for row, (each, shapes) in enumerate(zip(options.classes, options.shapes, strict=True)):
        shares = share_IC[row, : len(shapes)].tolist()
        chosen = [(shape, share) for shape, share in zip(shapes, shares, strict=True) if share > 0]
        rent = [shape.usd + congestion.get(shape.offer.gpu, 0.0) * shape.gpus * shape.hours for shape in shapes]
        plans.append(
            ClassPlan(
                name=each.name,
                jobs=each.jobs,
                per_h=each.per_h,
                weight=each.like.weight,
                chosen=tuple(sorted(chosen, key=lambda pair: pair[0].hours)),
                why=reason_for(shapes, shares, each.like.weight * value_of_time, rent, scarce=bool(congestion)),
            )
        )
        present += [(each.per_h * share * shape.hours, shape) for shape, share in chosen]
    spend, mean_s = options.sums(share_IC)
    kinds = sorted({shape.offer.gpu for _, shape in present})
    return RentalPlan(
        budget_usd_per_h=budget,
        value_of_time=value_of_time,
        classes=tuple(sorted(plans, key=lambda plan: -plan.per_h * plan.usd)),
        jobs_per_h=float(options.rate_I.sum()),
        mean_s=mean_s,
        spend_usd_per_h=spend,
        saved_s_per_usd=SECONDS_PER_H / (value_of_time * options.arriving) if value_of_time > 0 else math.inf,
        held=held_from([(jobs, shape.gpus) for jobs, shape in present]),
        held_by_kind={
            kind: held_from([(jobs, shape.gpus) for jobs, shape in present if shape.offer.gpu == kind])
            for kind in kinds
        },
        congestion_usd_per_gpu_h=congestion,
        frontier=points,
    )


def _corners(line: Frontier, arriving: float) -> tuple[FrontierPoint, ...]:
    return tuple(
        FrontierPoint(usd_per_h=spend, mean_s=SECONDS_PER_H * jobs / arriving, value_of_time=value)
        for spend, jobs, value in zip(*(column.tolist() for column in line.points()), strict=True)
    )


def _too_little(least: FrontierPoint, budget: float) -> Infeasible:
    enough = math.ceil(100 * least.usd_per_h - 1e-6) / 100
    return Infeasible(
        "this work costs more, even if every job runs in its cheapest shape",
        binding="the budget, in USD per hour,",
        needed=least.usd_per_h,
        available=budget,
        hint=f"USD {enough:,.2f} per hour is the smallest budget that suffices (mean completion time "
        f"{least.mean_s / 60:,.1f} min); or offer cheaper GPUs, allow spot, or admit less work",
    )


DEVIATIONS = 12.0  # how far beyond the mean the distribution is followed; what lies beyond is below rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """GPUs at a moment chosen at random."""

    mean: float
    p99: int  # the smallest number that is not exceeded 99 % of the time


def held_from(present: Sequence[tuple[float, int]]) -> Held:
    """From the mean number present and the GPUs of each, for every group of jobs.

    Cost: O(n log n) for n about the mean and twelve standard deviations.

    >>> held_from([(4.0, 1)]), held_from([(4.0, 8)]).p99
    (Held(mean=4.0, p99=9), 72)
    """
    mean = sum(jobs * gpus for jobs, gpus in present)
    widest = max((gpus for _, gpus in present), default=1)
    deviation = math.sqrt(sum(jobs * gpus**2 for jobs, gpus in present))
    points = 2 ** math.ceil(math.log2(mean + DEVIATIONS * (deviation + widest) + 2))
    jobs_G = np.zeros(points)  # G GPUs of one job
    for jobs, gpus in present:
        jobs_G[gpus] += jobs
    share_G = np.fft.irfft(np.exp(np.fft.rfft(jobs_G) - jobs_G.sum()), points)
    return Held(mean=mean, p99=int(np.searchsorted(np.cumsum(share_G), 0.99 - 1e-12)))


SAME = 1e-7  # prices nearer than this, relatively, are one price


def reason_for(
    shapes: Sequence[RentalShape],
    shares: Sequence[float],
    worth_usd_per_h: float,
    rent_usd: Sequence[float],
    *,
    scarce: bool = False,
) -> str:
    """One sentence. `rent_usd` is what each shape costs a job, the price of a `scarce` kind included."""
    chosen = [shape for shape, share in zip(shapes, shares, strict=True) if share > 0]
    if math.isinf(worth_usd_per_h):
        limit = "within the quota" if scarce else "that can be had"
        return f"{_several(chosen)}: the fastest {limit}, as money does not run short"
    curve = Curve.from_table([shape.hours for shape in shapes], rent_usd)
    line = [shapes[config] for config in curve.config]
    cheaper = int(np.searchsorted(curve.price, worth_usd_per_h * (1 - SAME))) - 1
    dearer = int(np.searchsorted(curve.price, worth_usd_per_h * (1 + SAME)))
    if len(chosen) > 1:
        worth = f"what an hour is worth, {_usd(worth_usd_per_h)}"
        return f"{_several(chosen)} are equally good, as the step costs just {worth}, per hour saved"
    facts = []
    if dearer < len(line):
        facts.append(f"{_step(line[dearer - 1], line[dearer])} would cost {_usd(curve.price[dearer])} per hour saved")
    elif len(line) > 1:
        facts.append("nothing on offer is faster")
    if cheaper > 0:
        facts.append(f"{_step(line[cheaper - 1], line[cheaper])} cost {_usd(curve.price[cheaper])}")
    if len(line) == 1:
        return f"{chosen[0]}: the cheapest and the fastest in one"
    return f"{_short(chosen[0])}: {', '.join(facts)}, time is worth {_usd(worth_usd_per_h)}"


def _step(before: RentalShape, after: RentalShape) -> str:
    """The addition, where it can be said; else the replacement."""
    if before.offer != after.offer or after.gpus <= before.gpus:
        return f"{after} instead of {before}"
    if after.gpus == before.gpus + 1:
        return f"the {_nth(after.gpus)}"
    return f"the {_nth(before.gpus + 1)} to {_nth(after.gpus)}"


def _short(shape: RentalShape) -> str:
    return f"{shape.gpus} GPU{'' if shape.gpus == 1 else 's'}"


def _several(shapes: Sequence[RentalShape]) -> str:
    return " and ".join(map(str, shapes))


def _nth(number: int) -> str:
    teens = number % 100 in {11, 12, 13}
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _usd(amount: float) -> str:
    return f"USD {amount:,.2f}" if amount >= 0.1 else f"USD {amount:.2g}"  # noqa: PLR2004 - two figures that count
