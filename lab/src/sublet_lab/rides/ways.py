"""How a job may ride, by name: policies of the kernel, and bounds that know the record.

| name | policy | pays for a change |
|---|---|---|
| ideal | the fastest grid at every change | nothing |
| oracle | the best path, known beforehand | live migration |
| checkpoint-restart | the fastest grid at every change (stands for Varuna) | a restart through storage |
| greedy-live | the fastest grid at every change | live migration |
| parcae | a look ahead on a forecast, before the tick's capacity is known | live migration |
| liveput | ours | live migration |
"""

from __future__ import annotations

import numpy as np

from sublet.perf.gridded import StoragePauses
from sublet.perf.grids import SpotJob
from sublet.policies.fastest import Fastest
from sublet.policies.liveput.policy import Liveput
from sublet_lab.forecasting.parcae import ParcaeForecast
from sublet_lab.forecasting.simple import Foreknown
from sublet_lab.rides.bounds import oracle
from sublet_lab.rides.parcae import Parcae
from sublet_lab.rides.record import Record
from sublet_lab.rides.ride import Way

WAYS = ("ideal", "oracle", "checkpoint-restart", "greedy-live", "parcae-truth", "parcae", "liveput")


def way_of(name: str, job: SpotJob, record: Record) -> Way:
    """One of WAYS over this record; the bounds, and parcae's truth, know it."""
    match name:
        case "ideal":
            return Way(Fastest(), None)
        case "oracle":
            return Way(oracle(job, record))
        case "checkpoint-restart":
            return Way(Fastest(), StoragePauses)
        case "greedy-live":
            return Way(Fastest())
        case "parcae-truth":
            truth = np.array([*record.before, *record.capacity], dtype=np.float64)
            return Way(Parcae(forecaster=Foreknown(truth=truth)))
        case "parcae":
            return Way(Parcae(forecaster=ParcaeForecast(since=len(record.before))))
        case "liveput":
            return Way(Liveput())
        case _:
            raise KeyError(name)
