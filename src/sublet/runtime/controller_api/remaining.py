"""The rest of a job: how long it will still take, what it will cost, and the risk that the cloud takes a part of it.

By the model that plans are made with (`perf.preemption`), so that the mean is the number that the policy reckons with.
Nodes are lost as the offers say, every loss costs what it costs there, and speed varies as it has varied.

Out of what is foreseen of each (`remaining`), as if jobs fared independently of each other. All have ended when the
last has: the chance of that by some time is the product of theirs. Dollars add up: so do medians, and what they may be
off by adds in squares. Of one job it is what is foreseen of that job. Jobs that wait, or whose amount of work is
unknown, are counted and not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import OfferState, Pool
from sublet.domain.shape import Shape, Spread, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import Reclaims, Toll, believe_reclaims, finish_of, toll_of
from sublet.runtime.controller_api.views import ENDED, Quantiles

NORMAL = NormalDist()
Z90 = NORMAL.inv_cdf(0.9)
HALVINGS = 14
SIGMAS = np.linspace(-8.0, 8.0, 1601)  # a table: pages ask this of hundreds of jobs, twice a second
LOG_CHANCE = np.array([math.log(0.5 * math.erfc(-sigma / math.sqrt(2.0))) for sigma in SIGMAS])
SURE = 1e-9  # the least spread of a logarithm, for what is foreseen to the second


class ForecastView(TypedDict):
    """Of all jobs that train now and of which it is known how much they have left."""

    jobs: int  # that are in it
    not_foreseen: int  # jobs that have not ended and are not: they wait, or nobody knows how much they have left
    end_s: Quantiles | None  # from now until the last of them ends; None = there is none
    usd: Quantiles | None  # that they cost from now on


def forecast_of(jobs: Iterable[Mapping[str, Any]]) -> ForecastView:
    """By the views of all jobs."""
    alive = [job for job in jobs if job["phase"] not in ENDED]
    foreseen = [job for job in alive if job["eta_s"] is not None and job["forecast_usd"] is not None]
    return {
        "jobs": len(foreseen),
        "not_foreseen": len(alive) - len(foreseen),
        "end_s": _last_of([job["eta_s"] for job in foreseen]) if foreseen else None,
        "usd": _sum_of([(job["forecast_usd"], job["usd_total"]) for job in foreseen]) if foreseen else None,
    }


def _last_of(ends: Sequence[Quantiles]) -> Quantiles:
    """Each end is taken to be normal in its logarithm, with a spread to either side of its middle."""
    low, middle, high = (np.log([max(end[name], 1e-3) for end in ends]) for name in ("p10", "p50", "p90"))
    early, late = np.maximum(middle - low, SURE) / Z90, np.maximum(high - middle, SURE) / Z90

    def chance(at: float) -> float:
        off: NDArray[np.float64] = at - middle
        sigmas = off / np.where(off < 0, early, late)
        return math.exp(float(np.interp(sigmas, SIGMAS, LOG_CHANCE).sum()))

    def by(share: float) -> float:
        z = NORMAL.inv_cdf(share)
        below = float(np.max(middle + z * np.where(z < 0, early, late)))  # the last cannot end before any of them
        above = float(np.max(high + 6.0 * late))
        for _ in range(HALVINGS):
            at = 0.5 * (below + above)
            below, above = (at, above) if chance(at) < share else (below, at)
        return math.exp(below if chance(below) >= share else above)

    if len(ends) == 1:
        return ends[0]
    return {"p10": by(0.1), "p50": by(0.5), "p90": by(0.9)}


def _sum_of(costs: Sequence[tuple[Quantiles, float]]) -> Quantiles:
    """Of what each will have cost, less what it has."""
    middle = sum(cost["p50"] - so_far for cost, so_far in costs)
    less = math.sqrt(sum((cost["p50"] - cost["p10"]) ** 2 for cost, _ in costs))
    more = math.sqrt(sum((cost["p90"] - cost["p50"]) ** 2 for cost, _ in costs))
    return {"p10": middle - less, "p50": middle, "p90": middle + more}


MOST_TOLLS = 4096  # of jobs in shapes; beyond that the one that was asked for longest ago
SPEED_SPREAD = 0.08  # of the logarithm: how far the mean speed of the rest may be from what was measured so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Cloud seconds to the end, and dollars until then."""

    left_s: Quantiles
    left_usd: Quantiles


def estimate_remaining(  # noqa: PLR0913 - a job, where it is, and how far
    offers: Sequence[OfferState],
    job: Job,
    shape: Shape,
    spread: Spread,
    *,
    spot_nodes: int,
    done: float,
    left: float,
    usd_per_h: float,
    believed: Job | None = None,
) -> Remaining | None:
    """Of a job in a shape of the pool whose offers these are, with its GPUs spread over nodes like this.

    `left` is the work to do, in the unit of its speed; None where it makes no progress. `believed` is the job as plans
    have it, if that is another: what losses cost is asked of that one, which changes seldom.
    """
    offer = offers[0].offer
    rate = job.speed_on(shape).rate(offer.gpu, spread, done)
    if rate <= 0 or not math.isfinite(rate):
        return None
    toll = _toll(believe_reclaims(offers), believed or job, offer.gpu, offer.gpus_per_node, shape, spot_nodes)
    finish = finish_of(left / rate, toll, spread=SPEED_SPREAD)
    if finish is None:
        return None
    p10, p50, p90 = (finish.quantile_s(share) for share in (0.1, 0.5, 0.9))
    usd = usd_per_h / SECONDS_PER_H
    return Remaining(
        left_s={"p10": p10, "p50": p50, "p90": p90}, left_usd={"p10": usd * p10, "p50": usd * p50, "p90": usd * p90}
    )


@lru_cache(maxsize=MOST_TOLLS)
def _toll(reclaims: Reclaims, job: Job, gpu: str, gpus_per_node: int, shape: Shape, spot_nodes: int) -> Toll:
    """Asked again and again of jobs whose progress alone has changed: all that it follows from is in the arguments."""
    return toll_of(reclaims, job, gpu, gpus_per_node, [shape], np.array([spot_nodes]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """GPUs of a shape by market."""

    spot: int
    on_demand: int
    spot_nodes: int

    @property
    def market(self) -> str:
        """Its market, or `both`."""
        if self.spot and self.on_demand:
            return "both"
        return str(Market.SPOT if self.spot else Market.ON_DEMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Over some hours: how often nodes are taken, and how often no state is left, so that it begins from storage."""

    losses: float
    restarts: float


def mix_of(shape: Shape, pool: Pool) -> Mix:
    """Nodes that are not steady are on spot, where there is any."""
    spot = shape.gpus - shape.steady if Market.SPOT in pool.markets else 0
    return Mix(spot=spot, on_demand=shape.gpus - spot, spot_nodes=len(packed(spot, pool.gpus_per_node)))


def risk_of(shape: Shape, pool: Pool, offers: Mapping[str, OfferState], job: Job, hours: float) -> Risk:
    """By the model that plans are made with. A job whose state does not survive begins anew at every loss."""
    states = [offers[offer_id] for offer_id in pool.offer_ids]
    nodes = np.array([mix_of(shape, pool).spot_nodes])
    toll = toll_of(believe_reclaims(states), job, pool.gpu, pool.gpus_per_node, [shape], nodes)
    losses = float(toll.hits_C[0]) * SECONDS_PER_H * hours
    return Risk(losses=losses, restarts=losses * float(toll.none_left_C[0]) if job.survives else losses)
