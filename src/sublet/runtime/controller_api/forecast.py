"""When all that runs will have ended, and what that will cost: of all jobs together, with how sure that is.

Out of what is foreseen of each (`remaining`), as if jobs fared independently of each other. All have ended when the
last has: the chance of that by some time is the product of theirs. Dollars add up: so do medians, and what they may
be off by adds in squares. Of one job it is what is foreseen of that job. Jobs that wait, or whose work is not
known, are counted and not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from sublet.runtime.controller_api.views import ENDED, Quantiles

__all__ = ["ForecastView", "forecast_of"]

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
