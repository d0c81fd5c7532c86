"""The choices of a rental plan: classes of jobs, and for each class the shapes it could run in, with time and money.

A shape is a number of GPUs of one offer. Rent is that of the share of a node in use; what is left over on a node is not
counted. Every start takes the job's restart time and the boot of its nodes, and both are paid for.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sublet.domain.job import Job
from sublet.domain.offer import Offer
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible, InvalidValue
from sublet.perf.preemption import read_reclaims, shapes_kept
from sublet.planning.widths import useful_widths


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobClass:
    """Jobs that differ in size and arrival only; `like` is one of them."""

    name: str
    like: Job
    works: tuple[tuple[float, int], ...]  # size, how many jobs of this size
    per_h: float

    @property
    def jobs(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.works)

    def seconds(self, gpu: str, gpus: int, gpus_per_node: int) -> float:
        """Mean time of a job from its first step to its last, all phases included; infinite if it cannot run."""
        spread, speed = packed(gpus, gpus_per_node), self.like.speed
        total_s = sum(count * speed.seconds(gpu, spread, 0.0, work) for work, count in self.works)
        return total_s / self.jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalShape:
    """So many GPUs of one offer; `hours` and `usd` are the means of one job of the class, its start included."""

    offer: Offer
    gpus: int
    hours: float
    usd: float
    slowdown: float = 1.0  # by reclaims

    @property
    def nodes(self) -> int:
        """As few as hold the GPUs."""
        return -(-self.gpus // self.offer.gpus_per_node)

    def __str__(self) -> str:
        where = f", {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.gpus} x {self.offer.gpu} ({self.offer.market}{where})"


def classes_from_jobs(jobs: Sequence[Job]) -> list[JobClass]:
    """Jobs that share model, speed, weight, limits and pauses are one class; its rate is their count / the span.

    Precondition: the jobs do not all arrive at one moment, for then they have no rate.
    """
    arrivals_s = [job.submit_s for job in jobs]
    span_h = (max(arrivals_s) - min(arrivals_s)) / SECONDS_PER_H if jobs else 0.0
    if span_h <= 0:
        raise InvalidValue("span of arrivals", span_h, "above 0 h: jobs that all arrive at once have no arrival rate")
    groups: dict[tuple[object, ...], list[Job]] = defaultdict(list)
    for job in jobs:
        limits = (job.min_gpus, job.max_gpus)
        pauses = (job.restart_s, job.checkpoint_every_s, job.checkpoint_write_s, job.survives, id(job.pauses))
        groups[job.model, id(job.speed), job.weight, limits, pauses].append(job)
    models = Counter(members[0].model for members in groups.values())
    classes, used = [], Counter[str]()
    for members in groups.values():
        name = _name(members[0], alone=models[members[0].model] == 1)
        used[name] += 1
        works = Counter(job.work for job in members)
        classes.append(
            JobClass(
                name=name if used[name] == 1 else f"{name} ({used[name]})",
                like=members[0],
                works=tuple(works.items()),
                per_h=len(members) / span_h,
            )
        )
    return classes


def shapes_of(job_class: JobClass, offers: Sequence[Offer], *, provision_s: float = 0.0) -> list[RentalShape]:
    """Every shape in which such a job can run; `Infeasible` if there is none."""
    shapes, seconds = [], dict[tuple[str, int, int], float]()
    like = job_class.like
    for offer in offers:
        boot_s = max(provision_s, offer.boot_s)
        widths = useful_widths(like, offer.gpus_per_node, math.inf)
        every = [Shape(offer.pool, gpus) for gpus in widths]
        kept_C = shapes_kept(read_reclaims(offer, boot_s), like, offer.gpu, offer.gpus_per_node, every).tolist()
        for gpus, kept in zip(widths, kept_C, strict=True):
            key = (offer.gpu, gpus, offer.gpus_per_node)
            if key not in seconds:
                seconds[key] = job_class.seconds(*key)
            slowdown = 1.0 / kept if kept > 0 else math.inf
            hours = (boot_s + like.restart_s + slowdown * seconds[key]) / SECONDS_PER_H
            if math.isfinite(hours):
                usd = offer.usd_per_gpu_h * gpus * hours
                shapes.append(RentalShape(offer=offer, gpus=gpus, hours=hours, usd=usd, slowdown=slowdown))
    if not shapes:
        kinds = sorted({f"{offer.gpu} {offer.market}" for offer in offers})
        raise Infeasible(
            f"{job_class.name} cannot run on {' or '.join(kinds)}",
            binding="number of shapes that it can run in",
            needed=1,
            available=0,
            hint="offer a kind of GPU on which it was measured, or on demand if reclaims come faster than it restarts",
        )
    return shapes


def _name(like: Job, *, alone: bool) -> str:
    model = like.model or "jobs"
    if alone:
        return model
    limits = f"{like.max_gpus}" if like.min_gpus == like.max_gpus else f"{like.min_gpus}-{like.max_gpus}"
    return f"{model} on {limits} GPU{'' if limits == '1' else 's'}"
