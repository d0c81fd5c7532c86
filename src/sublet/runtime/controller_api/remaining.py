"""How long a job will still take and what it will cost, with how sure that is.

Drawn, not derived: speed varies as it has varied, nodes are lost as the offers say, every loss costs what it costs in
the model that plans are made with (`perf.preemption`), so that the mean is the number that the policy reckons with.
The draws are the same for the same job at the same step, so that the figures do not flicker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublet.domain.job import Job
from sublet.domain.plan import OfferState
from sublet.domain.shape import Spread
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import believe_reclaims, hits_per_h, spot_speed
from sublet.runtime.controller_api.views import Quantiles

__all__ = ["Remaining", "estimate_remaining"]

DRAWS = 400
SPEED_SPREAD = 0.08  # of the logarithm: how far the mean speed of the rest may be from what was measured so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Cloud seconds to the end, and dollars until then."""

    left_s: Quantiles
    left_usd: Quantiles


def estimate_remaining(
    offers: Sequence[OfferState], job: Job, spread: Spread, *, done: float, left: float, usd_per_h: float, seed: int
) -> Remaining | None:
    """Of a job on nodes of one pool, whose offers these are, with its GPUs spread over them like this."""
    reclaims, nodes = believe_reclaims(offers), [len(spread)]
    return _draw_remaining(
        share_left=left,
        rate=job.speed.rate(offers[0].offer.gpu, spread, done),
        usd_per_h=usd_per_h,
        hits_per_h=float(hits_per_h(reclaims, nodes)[0]),
        kept=float(spot_speed(reclaims, job, nodes)[0]),
        seed=seed,
    )


def _draw_remaining(
    *, share_left: float, rate: float, usd_per_h: float, hits_per_h: float, kept: float, seed: int
) -> Remaining | None:
    """`rate` is the share of the job done per cloud second, undisturbed; None where it makes no progress.

    `kept` is the part of that speed which is left when the job is hit so often: over the time that it takes in all, a
    hit costs (1 - kept) / hits on average, whatever it consists of.
    """
    if rate <= 0 or not math.isfinite(rate) or kept <= 0:
        return None
    rng = np.random.default_rng(seed)
    trained_s = share_left / (rate * np.exp(rng.normal(0.0, SPEED_SPREAD, DRAWS)))
    left_s = trained_s
    if hits_per_h > 0:
        hits = rng.poisson(hits_per_h * trained_s / kept / SECONDS_PER_H)
        left_s = trained_s + hits * (1.0 - kept) / hits_per_h * SECONDS_PER_H
    return Remaining(left_s=_quantiles(left_s), left_usd=_quantiles(left_s * usd_per_h / SECONDS_PER_H))


def _quantiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Quantiles:
    values.sort()
    p10, p50, p90 = (float(values[round(share * (len(values) - 1))]) for share in (0.1, 0.5, 0.9))
    return {"p10": p10, "p50": p50, "p90": p90}
