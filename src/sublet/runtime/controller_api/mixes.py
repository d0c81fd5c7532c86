"""Where the GPUs of a shape would be, and how often the cloud is expected to take some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sublet.domain.job import Job
from sublet.domain.offer import Market
from sublet.domain.plan import OfferState, Pool
from sublet.domain.shape import Shape, packed
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption import believe_reclaims, toll_of

__all__ = ["Mix", "Risk", "mix_of", "risk_of"]


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
    """What is not steady is on spot, where there is any."""
    spot = shape.gpus - shape.steady if Market.SPOT in pool.markets else 0
    return Mix(spot=spot, on_demand=shape.gpus - spot, spot_nodes=len(packed(spot, pool.gpus_per_node)))


def risk_of(shape: Shape, pool: Pool, offers: Mapping[str, OfferState], job: Job, hours: float) -> Risk:
    """By the model that plans are made with. A job whose state does not survive begins anew at every loss."""
    states = [offers[offer_id] for offer_id in pool.offer_ids]
    nodes = np.array([mix_of(shape, pool).spot_nodes])
    toll = toll_of(believe_reclaims(states), job, pool.gpu, pool.gpus_per_node, [shape], nodes)
    losses = float(toll.hits_C[0]) * SECONDS_PER_H * hours
    return Risk(losses=losses, restarts=losses * float(toll.none_left_C[0]) if job.survives else losses)
