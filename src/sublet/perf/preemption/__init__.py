"""The one model of reclaims: how much of its speed a job keeps on nodes that are taken back, and where the rest goes.

All forecasts of the time or cost of a shape come from here: for policies, the rental plan, `ps`, `--dry-run` and
`explain` for shapes (`shapes`), and the adviser for traces (`cycles`). Hazard is per node-hour everywhere; how often a
job is hit follows from its spot nodes (`reclaims`).

A job of n such nodes is hit L times per hour. Every hit costs a pause: g seconds until other nodes are there, as far as
the notice did not cover them, and the restart r; another hit meanwhile makes it begin anew. Work since the last
checkpoint is lost, unless a notice leaves the time to write one. Hits are a Poisson process, so that from one recovery
to the next everything starts afresh, and the mean work over the mean time of such a cycle is the speed, exactly:

    noticed          exp(-L (g + r))
    not noticed      exp(-L (g + r)) x L T / (exp(L (T + w)) - 1)      every T seconds a checkpoint that takes w

The second is the whole of Daly's model (2006), not its first order, which is 1 - w / T - L (T / 2 + g + r). If the pool
is sold out for s seconds after a hit, nothing trains and nothing can be lost meanwhile: the cycle is that much longer,
and the speed is divided by 1 + L s. If survivors keep the state of the job (`Job.survives`), work is lost only with the
last copy of the model (`survivors`), and the survivors train until new nodes are there (`carrying_on`). How far a run
may be from the mean is in `Finish`.
"""

from sublet.perf.preemption.cycles import (
    Finish,
    Recovery,
    Toll,
    checkpoint_interval_s,
    finish_of,
    hit_cost_s,
    missing_nodes,
    speed_kept,
    toll_of_waiting,
)
from sublet.perf.preemption.reclaims import (
    NO_RECLAIMS,
    Reclaims,
    believe_reclaims,
    expected_hits_per_h,
    hits_per_h,
    read_reclaims,
)
from sublet.perf.preemption.shapes import shapes_kept, spot_speed, toll_of

__all__ = [
    "NO_RECLAIMS",
    "Finish",
    "Reclaims",
    "Recovery",
    "Toll",
    "believe_reclaims",
    "checkpoint_interval_s",
    "expected_hits_per_h",
    "finish_of",
    "hit_cost_s",
    "hits_per_h",
    "missing_nodes",
    "read_reclaims",
    "shapes_kept",
    "speed_kept",
    "spot_speed",
    "toll_of",
    "toll_of_waiting",
]
