"""Every policy of one job on a spot market, by its name, ready to run over a record."""

from __future__ import annotations

import numpy as np

from sublet.market.forecast.score import Foreknown, ParcaeForecast
from sublet.perf.grids import SpotJob
from sublet.spot.bamboo import Bamboo
from sublet.spot.liveput import Liveput
from sublet.spot.policies import CheckpointRestart, GreedyLive, Ideal, Parcae, SpotPolicy, oracle
from sublet.spot.record import Record

__all__ = ["policies_by_name"]

BAMBOO_DEEP = {"bert": 12, "resnet152": 8, "gpt-1.5b": 9, "gpt-6.7b": 16}  # its own for two, half as deep again for GPT


def policies_by_name(job: SpotJob, record: Record, *, notice_s: float = 0.0) -> dict[str, SpotPolicy]:
    """The bounds, the published ones and ours; the first of them, and parcae's truth, know the record."""
    truth = np.array([*record.before, *record.capacity], dtype=np.float64)
    return {
        "ideal": Ideal(),
        "oracle": oracle(job, record, notice_s=notice_s),
        "checkpoint-restart": CheckpointRestart(),
        "bamboo": Bamboo(deep=BAMBOO_DEEP[job.name]),
        "greedy-live": GreedyLive(),
        "parcae, truth": Parcae(forecaster=Foreknown(truth=truth)),
        "parcae": Parcae(forecaster=ParcaeForecast(since=len(record.before))),
        "liveput": Liveput(),
    }
