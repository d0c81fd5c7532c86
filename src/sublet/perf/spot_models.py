"""Jobs that know grids and whose speeds were measured: Parcae's models, and what an instance and a sample cost."""

from __future__ import annotations

from functools import cache
from typing import Any

from sublet.domain.job import Job, Pauses
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.gridded import Gridded
from sublet.perf.grids import SpotJob, spot_job
from sublet.perf.parcae import parcae_costs, parcae_rates

__all__ = ["ON_DEMAND_USD_PER_H", "SPOT_USD_PER_H", "gridded_job", "least_usd_per_sample", "measured_job", "shared_job"]

SPOT_USD_PER_H = 0.918  # p3.2xlarge in the public price traces, flat
ON_DEMAND_USD_PER_H = 3.06  # the same on demand, in Bamboo's simulator
KEPT_EVERY_S = 1e-3  # the state is kept aside all the time, as in Parcae: nothing is redone though all are lost


def measured_job(model: str, *, step_s: float = 60.0) -> SpotJob:
    """A model under Parcae's tables and costs."""
    return spot_job(model, parcae_rates(model), parcae_costs(model), step_s=step_s)


@cache
def shared_job(model: str) -> SpotJob:
    """The same one whenever it is asked for: jobs of one model share all that was worked out for it."""
    return measured_job(model)


def gridded_job(profile: SpotJob, pauses: Pauses | None, **facts: Any) -> Job:
    """A job of the kernel that trains in the grids of a profile; `facts` are fields of the job."""
    usual = {"gpus": profile.least, "min_gpus": profile.least, "checkpoint_every_s": KEPT_EVERY_S, "survives": True}
    return Job(**{**usual, "speed": Gridded(profile), "pauses": pauses, **facts})


def least_usd_per_sample(job: SpotJob, usd_per_h: float = SPOT_USD_PER_H) -> float:
    """In the thriftiest grid, without any change."""
    return usd_per_h / SECONDS_PER_H / float((job.rate_C[1:] / job.use_C[1:]).max())
