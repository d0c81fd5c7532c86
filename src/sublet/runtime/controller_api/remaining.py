"""The rest of a job: how long it will still take, what it will cost, and the risk that the cloud takes a part of it.

By the model that plans are made with (`perf.preemption`), so that the mean is the number that the policy reckons with.
Nodes are lost as the offers say, every loss costs what it costs there, and speed varies as it has varied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import OfferState, Pool
from sublet.domain.shape import Shape, Spread, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import Reclaims, Toll, believe_reclaims, finish_of, toll_of
from sublet.runtime.controller_api.views import Quantiles

__all__ = ["Mix", "Remaining", "Risk", "estimate_remaining", "mix_of", "risk_of"]

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
    """GPUs that are not steady are on spot, where there is any."""
    spot = shape.gpus - shape.steady if Market.SPOT in pool.markets else 0
    return Mix(spot=spot, on_demand=shape.gpus - spot, spot_nodes=len(packed(spot, pool.gpus_per_node)))


def risk_of(shape: Shape, pool: Pool, offers: Mapping[str, OfferState], job: Job, hours: float) -> Risk:
    """By the model that plans are made with. A job whose state does not survive begins anew at every loss."""
    states = [offers[offer_id] for offer_id in pool.offer_ids]
    nodes = np.array([mix_of(shape, pool).spot_nodes])
    toll = toll_of(believe_reclaims(states), job, pool.gpu, pool.gpus_per_node, [shape], nodes)
    losses = float(toll.hits_C[0]) * SECONDS_PER_H * hours
    return Risk(losses=losses, restarts=losses * float(toll.none_left_C[0]) if job.survives else losses)
