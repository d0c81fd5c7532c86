"""How long a job will still take and what it will cost, with how sure that is.

By the model that plans are made with (`perf.preemption`), so that the mean is the number that the policy reckons with:
nodes are lost as the offers say, every loss costs what it costs there, and speed varies as it has varied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import OfferState
from sublet.domain.shape import Shape, Spread
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import Finish, believe_reclaims, finish_of, toll_of
from sublet.runtime.controller_api.views import Quantiles

__all__ = ["Remaining", "estimate_remaining"]

SPEED_SPREAD = 0.08  # of the logarithm: how far the mean speed of the rest may be from what was measured so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Cloud seconds to the end, and dollars until then."""

    left_s: Quantiles
    left_usd: Quantiles


def estimate_remaining(
    offers: Sequence[OfferState],
    job: Job,
    shape: Shape,
    spread: Spread,
    *,
    spot_nodes: int,
    done: float,
    left: float,
    usd_per_h: float,
) -> Remaining | None:
    """Of a job in a shape of the pool whose offers these are, with its GPUs spread over nodes like this.

    `left` is the work to do, in the unit of its speed; None where it makes no progress.
    """
    offer = offers[0].offer
    rate = job.speed_on(shape).rate(offer.gpu, spread, done)
    if rate <= 0 or not math.isfinite(rate):
        return None
    toll = toll_of(believe_reclaims(offers), job, offer.gpu, offer.gpus_per_node, [shape], np.array([spot_nodes]))
    finish = finish_of(left / rate, toll, spread=SPEED_SPREAD)
    if finish is None:
        return None
    return Remaining(left_s=_quantiles(finish, 1.0), left_usd=_quantiles(finish, usd_per_h / SECONDS_PER_H))


def _quantiles(finish: Finish, times: float) -> Quantiles:
    p10, p50, p90 = (times * finish.quantile_s(share) for share in (0.1, 0.5, 0.9))
    return {"p10": p10, "p50": p50, "p90": p90}
