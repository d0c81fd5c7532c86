"""Jobs whose speeds were measured: Parcae's models, in one zone or in several, and what a sample of theirs costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sublet.domain.units import SECONDS_PER_H
from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.parcae import PARCAE_BATCHES, parcae_costs, parcae_rates
from sublet.spot.zones import Have, Links, ZonedJob

__all__ = ["ON_DEMAND_USD_PER_H", "SPOT_USD_PER_H", "least_usd_per_sample", "measured_job", "measured_zoned_job"]

SPOT_USD_PER_H = 0.918  # p3.2xlarge in the public price traces, flat
ON_DEMAND_USD_PER_H = 3.06  # the same on demand, in Bamboo's simulator


def measured_job(model: str, *, step_s: float = 60.0) -> SpotJob:
    """A model under Parcae's tables and costs."""
    return spot_job(model, parcae_rates(model), parcae_costs(model), step_s=step_s)


def measured_zoned_job(
    model: str, zones: Sequence[str], have_T: Sequence[Have], *, step_s: float, links: Links
) -> ZonedJob:
    """A model in several zones; nobody pays more for a sample than it costs on demand."""
    job = measured_job(model, step_s=step_s)
    return ZonedJob(
        job,
        zones,
        np.array(have_T).max(axis=0).tolist(),
        batch=PARCAE_BATCHES[model],
        links=links,
        usd_per_h=SPOT_USD_PER_H,
        most_usd=least_usd_per_sample(job, ON_DEMAND_USD_PER_H),
    )


def least_usd_per_sample(job: SpotJob, usd_per_h: float = SPOT_USD_PER_H) -> float:
    """In the thriftiest grid, without any change."""
    return usd_per_h / SECONDS_PER_H / float((job.rate_C[1:] / job.use_C[1:]).max())
