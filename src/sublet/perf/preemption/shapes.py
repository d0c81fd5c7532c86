"""The cost of reclaims in the speed of shapes: all forecasts of the time or cost of a shape come from here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sublet.domain.job import Job
from sublet.domain.shape import Shape
from sublet.domain.units import SECONDS_PER_H
from sublet.perf.preemption.carrying_on import carry_on
from sublet.perf.preemption.cycles import Recovery, Toll, checkpoint_interval_s, speed_kept, toll_of_waiting
from sublet.perf.preemption.reclaims import Reclaims, hits_per_h
from sublet.perf.preemption.survivors import kind_of, nodes_of, pausing, spot_nodes, survivors_of
from sublet.solve.arrays import Floats, Ints

# C shapes; what is said of them are numbers, or arrays that fit one another


def shapes_kept(
    reclaims: Reclaims,
    job: Job,
    gpu: str,
    gpus_per_node: int,
    shapes: Sequence[Shape],
    spot_nodes_C: Ints | None = None,
) -> Floats:
    """The part of its undisturbed speed that a job keeps in each of these shapes of one pool.

    `reclaims` is what befalls the spot nodes of the pool (`believe_reclaims` of its offers, of whatever markets). Each
    shape says how many of its GPUs are on demand (`steady`) and how it is cut (`grid`); `spot_nodes_C` says how many
    nodes may be taken, else as few as hold the rest. All on demand keeps 1, exactly. Jobs without `survives` lose what
    they did since their last checkpoint at every hit, and wait: with nothing on demand that is `spot_speed`, to the
    digit. Jobs with it go on with the survivors, or wait where that is quicker. They begin anew from storage only where
    no whole copy is left, or, if their own `pauses` know how to restore a part, where no worker is.

    Precondition: hits are independent of one another, a recovery is hit as often as the whole job, and what is lost by
    then is there again when it is hit; equal speeds and pauses answer alike, whenever they are asked. Cost: O(C), with
    a share of nodes that go at once O(C K) for K nodes; for each new shape K speeds and four questions to `job.pauses`.

    >>> from sublet.perf.speedup import Linear
    >>> kept = {"restart_s": 60.0, "checkpoint_every_s": 600.0, "survives": True}
    >>> job = Job(id="j", submit_s=0.0, work=1.0, speed=Linear(), **kept)
    >>> shapes = [Shape("p", 4, steady=steady) for steady in (0, 1, 4)]
    >>> shapes_kept(Reclaims(per_h=0.5, boot_s=300.0), job, "T4", 1, shapes).round(4).tolist()
    [0.9093, 0.9303, 1.0]
    """
    if not job.survives and job.pauses is None:  # the survivors make no difference
        return spot_speed(reclaims, job, spot_nodes(shapes, gpus_per_node) if spot_nodes_C is None else spot_nodes_C)
    return toll_of(reclaims, job, gpu, gpus_per_node, shapes, spot_nodes_C).kept_C


def toll_of(
    reclaims: Reclaims,
    job: Job,
    gpu: str,
    gpus_per_node: int,
    shapes: Sequence[Shape],
    spot_nodes_C: Ints | None = None,
) -> Toll:
    """The use of time: the part that is kept, and the cost of hits. As `shapes_kept`."""
    spot_C = spot_nodes(shapes, gpus_per_node) if spot_nodes_C is None else np.asarray(spot_nodes_C, dtype=np.intp)
    if reclaims.per_h == 0.0 or not spot_C.any():
        return Toll.nothing(len(shapes))
    nodes = nodes_of(shapes, gpus_per_node, spot_C)
    hits_C = hits_per_h(reclaims, nodes.spot_C) / SECONDS_PER_H
    kind = kind_of(job, gpu, gpus_per_node)
    left, pauses = survivors_of(reclaims, kind, nodes), pausing(reclaims, kind, nodes)
    if not job.survives:
        recovery = _recovery(reclaims, job, hits_C, job.restart_s if job.pauses is None else pauses.refill_C)
        return toll_of_waiting(hits_C, recovery, left.none_left_C)
    restores = job.pauses is not None  # a part of which no copy is left
    again_C = left.gone_C if restores else left.none_left_C
    return carry_on(
        hits_C,
        again_C=again_C,
        none_left_C=left.none_left_C,
        share_C=left.any_share_C if restores else left.share_C,
        pauses=pauses,
        boot_s=_boot_s(reclaims),
        write_s=0.0 if _is_warned(reclaims, job) else job.checkpoint_write_s,
        every_s=0.0 if _is_warned(reclaims, job) else None if job.checkpoint_write_s else job.checkpoint_every_s,
    )


def spot_speed(
    reclaims: Reclaims, job: Job, nodes_C: npt.ArrayLike, survivors_C: npt.ArrayLike | None = None
) -> Floats:
    """The part of its undisturbed speed that a job keeps on so many nodes; 1 without reclaims, 0 if it never ends.

    `survivors_C` is the part that the nodes which a hit leaves would make; without it the job waits for new ones.

    Precondition: hits are independent of one another, and a recovery is hit as often as the whole job. Cost: O(C).

    >>> from sublet.perf.speedup import Linear
    >>> job = Job(id="j", submit_s=0.0, work=1.0, speed=Linear(), restart_s=180.0)
    >>> spot_speed(Reclaims(per_h=0.5, notice_s=120.0), job, [1, 4]).round(4).tolist()  # exp(-0.025), exp(-0.1)
    [0.9753, 0.9048]
    """
    nodes_C = np.asarray(nodes_C, dtype=np.float64)
    if reclaims.per_h == 0.0:
        return np.ones(len(nodes_C))
    hits_C = hits_per_h(reclaims, nodes_C) / SECONDS_PER_H
    return speed_kept(hits_C, _recovery(reclaims, job, hits_C, job.restart_s), survivors_C)


def _recovery(reclaims: Reclaims, job: Job, hits_C: Floats, restart_s: npt.ArrayLike) -> Recovery:
    warned = _is_warned(reclaims, job)
    every_C: npt.ArrayLike = 0.0
    if not warned:  # after Young and Daly where writing takes time, else as the job has it
        every_C = (
            checkpoint_interval_s(job.checkpoint_write_s, hits_C) if job.checkpoint_write_s else job.checkpoint_every_s
        )
    return Recovery(
        every_s=every_C,
        write_s=0.0 if warned else job.checkpoint_write_s,
        boot_s=_boot_s(reclaims),
        restart_s=restart_s,
    )


def _is_warned(reclaims: Reclaims, job: Job) -> bool:
    return 0.0 < reclaims.notice_s >= job.checkpoint_write_s


def _boot_s(reclaims: Reclaims) -> float:
    return max(0.0, reclaims.boot_s - reclaims.notice_s)
